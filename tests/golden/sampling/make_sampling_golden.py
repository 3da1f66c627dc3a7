"""Writes what Hugging Face transformers leaves of a distribution to
sampling_golden.json, a case a line.

    python make_sampling_golden.py

Wants torch and transformers as pinned in ../../models/requirements.txt. The logits are
not in the file: both sides make them (see `logits`), all values exact in float32 or
rounded once.

Case: vocab, salt, scale, parameters that are not off, `context` (token ids that the
repetition penalty sees), and `tokens` with their `probabilities`.
"""

import json
import pathlib

import numpy as np
import torch
from transformers.generation import logits_process as lp

HERE = pathlib.Path(__file__).resolve().parent


def logits(vocab, salt, scale, steps):
    """Hashed ids, spread evenly over [-scale / 2, scale / 2) in `steps` steps."""
    ids = np.arange(vocab, dtype=np.uint64) + np.uint64(salt)
    hashed = (ids * np.uint64(2654435761)) % np.uint64(2**32)
    step = hashed * np.uint64(steps) >> np.uint64(32)
    values = step.astype(np.float64) / steps * scale - scale / 2
    return values.astype(np.float32)


def run(case):
    scores = torch.tensor(logits(case["vocab"], case["salt"], case["scale"],
                                 case["steps"]))[None, :]
    context = torch.tensor([case.get("context", [])], dtype=torch.long)
    processors = []  # in the order of GenerationMixin._get_logits_processor
    if "logit_bias" in case:
        processors.append(lp.SequenceBiasLogitsProcessor(
            [[[token], value] for token, value in case["logit_bias"]]))
    if "repetition_penalty" in case:
        processors.append(lp.RepetitionPenaltyLogitsProcessor(case["repetition_penalty"]))
    if "temperature" in case:
        processors.append(lp.TemperatureLogitsWarper(case["temperature"]))
    if "top_k" in case:
        processors.append(lp.TopKLogitsWarper(case["top_k"]))
    if "top_p" in case:
        processors.append(lp.TopPLogitsWarper(case["top_p"]))
    if "min_p" in case:
        processors.append(lp.MinPLogitsWarper(case["min_p"]))
    for processor in processors:
        scores = processor(context, scores)
    kept = torch.isfinite(scores[0]).nonzero()[:, 0].tolist()
    probabilities = torch.softmax(scores[0].double(), dim=-1)
    case["tokens"] = kept
    case["probabilities"] = [float(f"{probabilities[t]:.6g}") for t in kept]
    return case


def make_all():
    fine, coarse = 2**24, 64  # without ties, with many
    base = [
        dict(vocab=50, salt=1, scale=8.0, steps=fine),
        dict(vocab=1000, salt=2, scale=40.0, steps=fine),
        dict(vocab=5000, salt=3, scale=60.0, steps=fine),
    ]
    parameters = [
        dict(top_k=1), dict(top_k=7), dict(top_k=40, temperature=0.5),
        dict(top_p=0.9), dict(top_p=0.3), dict(top_p=0.999, temperature=0.7),
        dict(top_p=1e-6), dict(min_p=0.1), dict(min_p=1.0), dict(min_p=0.02, temperature=1.5),
        dict(top_k=30, top_p=0.8), dict(top_k=5, top_p=0.95, temperature=2.0),
        dict(top_k=20, min_p=0.2), dict(top_p=0.95, min_p=0.05),
        dict(temperature=0.8, top_k=50, top_p=0.95, min_p=0.01),
        dict(top_k=12, repetition_penalty=1.3),
        dict(top_p=0.9, repetition_penalty=0.7, temperature=0.9),
    ]
    cases = [{**b, **p} for b in base for p in parameters]
    for case in cases:
        if "repetition_penalty" in case:
            values = logits(case["vocab"], case["salt"], case["scale"], case["steps"])
            order = np.argsort(-values).tolist()
            # Likely ones, a few of them twice, one of middling and one of negative logit.
            case["context"] = order[:4] + order[:2] + [order[len(order) // 2], order[-1]]
    cases += [
        dict(vocab=50, salt=4, scale=4.0, steps=fine, temperature=1.0),
        dict(vocab=50, salt=4, scale=4.0, steps=fine, temperature=3.0),
        dict(vocab=50, salt=4, scale=4.0, steps=fine, top_k=50),
        dict(vocab=50, salt=4, scale=4.0, steps=fine, top_k=9999),
        # Equal logits at the border: all of them stay.
        dict(vocab=500, salt=5, scale=20.0, steps=coarse, top_k=10),
        dict(vocab=500, salt=5, scale=20.0, steps=coarse, top_k=3, top_p=0.9),
        dict(vocab=300, salt=6, scale=10.0, steps=fine, top_k=6,
             logit_bias=[[3, 5.0], [299, 4.5], [0, -20.0]]),
    ]
    with open(HERE / "sampling_golden.json", "w", encoding="utf-8") as out:
        lines = ",\n".join(json.dumps(run(c), separators=(",", ":")) for c in cases)
        out.write(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    make_all()
