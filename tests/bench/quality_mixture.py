#!/usr/bin/env python3
"""Perplexity of the trained mixture of experts with its experts in other formats.

    quality_mixture.py --peer LLAMACPP_PEER [--bin build/release/bin] [--chapters 20]

Writes tests/models/qwen3-moe-kjv as GGUF files whose experts have one format each (make_mixture.py;
gguf-py quantizes), all else in float32, and gives the same lists of token ids to Sluice and to
llama.cpp's library (llamacpp_peer.cc, as quality_llamacpp.py compiles it; for quantized weights it
rounds activations to 8 bits, too). Beside them are Sluice's own int8 and int4 of all matrices.
"nll over BF16" is the mean of -log p less that of Sluice with bfloat16 experts, with its standard
error, the tokens being paired. Prints a table and puts it under "mixture of experts" in
tests/bench/results/quality.json. Needs Debian's bible-kjv, and gguf, numpy, safetensors, ml_dtypes
and tokenizers of PyPI.
"""

import argparse
import json
import os
import sys
import tempfile

import numpy as np

import make_mixture
from machine import machine, today
from quality_llamacpp import HERE, MODELS, nll_by_llama_cpp, nll_by_sluice, windows_of

MODEL = os.path.join(MODELS, "qwen3-moe-kjv")
CONTEXT = 512
sys.path.insert(0, MODELS)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--bin", default=os.path.join(HERE, "..", "..", "build/release/bin"))
    parser.add_argument("--peer", required=True, help="the compiled llamacpp_peer.cc")
    parser.add_argument("--chapters", type=int, default=0, help="the first so many; 0: all")
    a = parser.parse_args()
    import kjv

    _, held_out = kjv.split(kjv.load_chapters())
    texts = [chapter.text for chapter in held_out[:a.chapters or None]]
    windows = [(ids, max(first, 1)) for ids, first in windows_of(texts, CONTEXT, MODEL)]
    found = {}
    with tempfile.TemporaryDirectory(prefix="sluice-quality-") as d:
        for kind in ("F32", "BF16", "Q8_0", "Q4_0", "MXFP4"):
            path = os.path.join(d, kind + ".gguf")
            make_mixture.write(path, make_mixture.shape_of_model(MODEL, kind),
                               make_mixture.ModelValues(MODEL))
            found[f"experts {kind}"] = (nll_by_sluice(a, path, windows),
                                        nll_by_llama_cpp(a.peer, path, windows, CONTEXT))
    for bits in ("int8", "int4"):
        found[f"all matrices {bits}"] = (
            nll_by_sluice(a, MODEL, windows, f"compress-weights={bits}"), None)
    base = found["experts BF16"][0]
    rows = {}
    for name, (ours, theirs) in found.items():
        over = ours - base
        rows[name] = {"perplexity": float(np.exp(ours.mean())),
                      "nll over BF16": float(over.mean()),
                      "standard error": float(over.std() / len(over) ** 0.5)}
        if theirs is not None:
            rows[name]["llama.cpp's perplexity"] = float(np.exp(theirs.mean()))
        print(f"{name:20}", *(f"{k} {v:.5f}  " for k, v in rows[name].items()))
    result = os.path.join(HERE, "results", "quality.json")
    with open(result) as f:
        figures = json.load(f)
    figures["mixture of experts"] = {"date": today(), "machine": machine(), "tokens": len(base),
                                     "formats": rows}
    with open(result, "w") as f:
        json.dump(figures, f, indent=1)
        f.write("\n")


if __name__ == "__main__":
    main()
