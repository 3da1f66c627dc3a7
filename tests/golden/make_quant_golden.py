"""Groups of weights and how well they can be quantized at best, for runtime/quant.

Writes quant/groups.bin, float32[G][64], and quant/groups.json: for 4 and 8 bits and each
group the sum of squared errors of

    plain    the definition: scale = (max - min) / top, code = round((x - min) / scale)
    optimum  the best real scale and minimum found by brute force: a dense grid of ends of
             the range, from each of which rounding to codes and fitting by least squares
             alternate until nothing changes

both in float64, with scale and minimum not rounded to float16; and, as "q4_0", that of
llama.cpp's 4-bit format, which takes the same 4.5 bits a number: 32 numbers share a float16
scale, -1/8 of the one that is largest in magnitude, and the codes stand for -8 to 7 scales.
Needs numpy alone.
"""

import json
import pathlib

import numpy as np

OUT = pathlib.Path(__file__).resolve().parent / "quant"
SIZE = 64
GROUPS = 24  # of each kind
# Ends of the range, moved inwards by so many codes.
GRID = {4: np.linspace(-1.0, 4.0, 41), 8: np.linspace(-1.0, 2.0, 13)}
ROUNDS = 30


def kinds(rng):
    shape = (GROUPS, SIZE)
    normal = rng.standard_normal(shape) * 0.02
    outliers = normal.copy()
    outliers[np.arange(GROUPS), rng.integers(0, SIZE, GROUPS)] *= 8
    return {
        "normal": normal,
        "student": rng.standard_t(5, shape) * 0.01,
        "uniform": rng.uniform(-1, 1, shape),
        "outliers": outliers,
        "offset": 1 + normal * 0.1,
    }


def codes(x, scale, low, top):
    return np.clip(np.rint((x - low[:, None]) / scale[:, None]), 0, top)


def errors(x, scale, low, q):
    return ((low[:, None] + q * scale[:, None] - x) ** 2).sum(1)


def fit(x, q, scale, low):
    """Least squares of x = low + q * scale, row by row."""
    dx, dq = x - x.mean(1, keepdims=True), q - q.mean(1, keepdims=True)
    square = (dq * dq).sum(1)
    ok = square > 0
    scale = np.where(ok, (dq * dx).sum(1) / np.where(ok, square, 1), scale)
    return scale, x.mean(1) - scale * q.mean(1)


def plain(x, top):
    low = x.min(1)
    scale = (x.max(1) - low) / top
    return errors(x, scale, low, codes(x, scale, low, top))


def optimum(group, bits):
    top = 2**bits - 1
    step = (group.max() - group.min()) / top
    a, b = (g.ravel() for g in np.meshgrid(GRID[bits], GRID[bits]))
    low = group.min() + a * step
    scale = (group.max() - b * step - low) / top
    x = np.broadcast_to(group, (len(a), SIZE))
    q = codes(x, scale, low, top)
    best = errors(x, scale, low, q).min()
    for _ in range(ROUNDS):
        scale, low = fit(x, q, scale, low)
        best = min(best, errors(x, scale, low, q).min())
        after = codes(x, scale, low, top)
        if (after == q).all():
            break
        q = after
    return best


def q4_0(x):
    """quantize_row_q4_0_ref of ggml-quants.c, in float32 as there."""
    blocks = x.astype(np.float32).reshape(-1, 32)
    largest = np.take_along_axis(blocks, np.abs(blocks).argmax(1)[:, None], 1)
    scale = largest / np.float32(-8)
    inverse = np.where(scale == 0, 0, np.float32(1) / np.where(scale == 0, 1, scale))
    q = np.minimum(15, np.trunc(blocks * inverse + np.float32(8.5)))
    back = (q - 8) * scale.astype(np.float16).astype(np.float64)
    return ((back.reshape(x.shape) - x) ** 2).sum(1)


def rounded(values):
    return [float(f"{v:.7g}") for v in values]


def make_all():
    rng = np.random.default_rng(20240)
    by_kind = {name: x.astype(np.float32) for name, x in kinds(rng).items()}
    groups = np.concatenate(list(by_kind.values()))
    exact = groups.astype(np.float64)
    errors_of = {}
    for bits in GRID:
        at_best = [optimum(g, bits) for g in exact]
        as_defined = plain(exact, 2**bits - 1)
        assert (np.array(at_best) <= as_defined).all()
        errors_of[str(bits)] = {
            "plain": rounded(as_defined),
            "optimum": rounded(at_best),
        }
    OUT.mkdir(exist_ok=True)
    (OUT / "groups.bin").write_bytes(groups.astype("<f4").tobytes())
    (OUT / "groups.json").write_text(json.dumps(
        {"size": SIZE, "groups_per_kind": GROUPS, "kinds": list(by_kind), "bits": errors_of,
         "q4_0": rounded(q4_0(exact))},
        indent=1) + "\n")
    print(f"quant: {len(groups)} groups")


if __name__ == "__main__":
    make_all()
