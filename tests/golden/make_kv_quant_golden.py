"""Codes, scales and minima of the KV cache's group-wise quantization, by its definition in
numpy, written to kv_quant/kv_quant_golden.json.

    python make_kv_quant_golden.py

Definition (FlexGen, section 5, with fp16 scales): for each group x of up to 64 neighbouring
elements of a head, in float32,

    m = fp16(min(x))
    s = fp16(max(max(x) - m, 0) / levels)        levels: 255 or 15
    code = round(clip((x - m) / s, 0, levels))   0 where s is 0

all rounding to nearest, ties to even; s = 0 and m = NaN where a number is not finite or
does not fit fp16.

File: a list of cases, each with `name`, `values` (float32 as the hexadecimal of its bits),
and for "int8" and "int4" `codes`, `scales` and `minima` (fp16 bits; NaN as 32256).
"""

import json
import pathlib

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
GROUP = 64
F = np.float32


def quantize(x, levels):
    codes, scales, minima = [], [], []
    for begin in range(0, len(x), GROUP):
        group = x[begin:begin + GROUP]
        with np.errstate(all="ignore"):
            m = np.float16(group.min() + F(0))
            top = np.maximum(group.max() - F(m), F(0))
            s = np.float16(top / F(levels))
        if not (np.isfinite(group).all() and np.isfinite(m) and np.isfinite(s)):
            m, s = np.float16(np.nan), np.float16(0)
        if s == 0:
            code = np.zeros(len(group))
        else:
            code = np.rint(np.clip((group - F(m)) / F(s), F(0), F(levels)))
        codes += [int(c) for c in code]
        scales.append(int(s.view(np.uint16)))
        minima.append(32256 if np.isnan(m) else int(m.view(np.uint16)))
    return {"codes": codes, "scales": scales, "minima": minima}


def cases():
    random = np.random.default_rng(11)
    for n in (1, 2, 3, 10, 16, 31, 40, 63, 64, 65, 80, 96, 128):
        yield f"normal {n}", random.normal(size=n)
    for n in (16, 80):
        yield f"wide {n}", random.normal(size=n) * 10.0 ** random.uniform(-4, 3, size=n)
        yield f"one outlier {n}", np.where(np.arange(n) == 5, 300.0, random.normal(size=n))
        yield f"far from zero {n}", 1000 + random.normal(size=n)
        yield f"tiny {n}", random.normal(size=n) * 1e-7
        yield f"halves of steps {n}", np.arange(n) % 31 / 2
        yield f"large {n}", random.uniform(-60000, 60000, size=n)
    yield "zeros", np.zeros(80)
    yield "negative zeros", -np.zeros(20)
    yield "constant that fp16 has", np.full(70, -3.25)
    yield "constant that fp16 has not, rounded down", np.full(40, 0.1)
    yield "constant that fp16 has not, rounded up", np.full(40, 0.3)
    yield "two values", np.where(np.arange(64) % 3 == 0, 1.5, -2.0)
    yield "too large", np.linspace(-1e5, 1e5, 24)
    yield "too large together", np.array([-6e4, 6e4, 1e30, 0])
    for name, bad in (("nan", np.nan), ("infinity", np.inf), ("minus infinity", -np.inf)):
        x = random.normal(size=100)
        x[70] = bad
        yield f"{name} in the second group", x
        yield f"{name} alone", np.array([bad])


def make_all():
    out = []
    with np.errstate(all="ignore"):
        for name, values in cases():
            x = np.asarray(values).astype(F)
            out.append({
                "name": name,
                "values": "".join(f"{b:08x}" for b in x.view(np.uint32)),
                "int8": quantize(x, 255),
                "int4": quantize(x, 15),
            })
    with open(HERE / "kv_quant" / "kv_quant_golden.json", "w", encoding="ascii") as file:
        lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in out)
        file.write(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    make_all()
