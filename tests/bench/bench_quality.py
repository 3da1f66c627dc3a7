#!/usr/bin/env python3
"""Perplexity of the trained models under each number format.

    bench_quality.py [--bin build/release/bin]

`sluice score` over the held-out chapters (tests/models/kjv.py; needs Debian's
bible-kjv), a window per chapter part of the models' own context. Sparse
attention is for decoding, so its rows feed the texts token by token. Prints a
table and writes tests/bench/results/quality.json. Standard library only.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile

from machine import machine, today

HERE = os.path.dirname(os.path.abspath(__file__))
MODELS = os.path.join(HERE, "..", "models")
sys.path.insert(0, MODELS)
TOKEN_BY_TOKEN = "gbs=1 max-step-tokens=1 num-microbatches=64"
FORMATS = (
    ("float32", "float32", ""),
    ("bfloat16", "bfloat16", ""),
    ("8-bit weights", "float32", "compress-weights=int8"),
    ("4-bit weights", "float32", "compress-weights=int4"),
    ("8-bit KV", "float32", "compress-kv=int8"),
    ("4-bit KV", "float32", "compress-kv=int4"),
    ("4-bit weights and KV", "float32", "compress-weights=int4 compress-kv=int4"),
    ("sparse 10 %", "float32", f"sparsity=0.1 {TOKEN_BY_TOKEN}"),
    ("4-bit weights and KV, sparse 10 %", "float32",
     f"compress-weights=int4 compress-kv=int4 sparsity=0.1 {TOKEN_BY_TOKEN}"),
)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--bin", default=os.path.join(HERE, "..", "..", "build/release/bin"))
    parser.add_argument("--chapters", type=int, default=0, help="the first so many; 0: all")
    parser.add_argument("--result", default=os.path.join(HERE, "results", "quality.json"))
    a = parser.parse_args()
    import kjv

    _, held_out = kjv.split(kjv.load_chapters())
    figures = {}
    with tempfile.TemporaryDirectory(prefix="sluice-quality-") as d:
        inputs = []
        for i, chapter in enumerate(held_out[:a.chapters or None]):
            path = os.path.join(d, f"{i:04}.txt")
            with open(path, "w") as f:
                f.write(chapter.text)
            inputs += ["--input", path]
        for model in ("llama-kjv", "opt-kjv"):
            for name, dtype, policy in FORMATS:
                done = subprocess.run(
                    [os.path.join(a.bin, "sluice"), "score", "--model",
                     os.path.join(MODELS, model), *inputs, "--dtype", dtype, "--json", "-q",
                     *(["--policy", policy] if policy else [])],
                    capture_output=True, text=True)
                if done.returncode != 0:
                    sys.exit(f"{model}, {name}: {done.stderr}")
                score = json.loads(done.stdout.splitlines()[-1])
                figures.setdefault(model, {})[name] = score["perplexity"]
                print(f"{model:10} {name:36} {score['perplexity']:9.4f}   "
                      f"{score['tokens_scored']} tokens", flush=True)
    result = {}
    if os.path.exists(a.result):  # quality_llamacpp.py writes there, too
        with open(a.result) as f:
            result = json.load(f)
    result |= {"date": today(), "machine": machine(),
               "chapters": len(inputs) // 2, "perplexity": figures}
    with open(a.result, "w") as f:
        json.dump(result, f, indent=1)
        f.write("\n")


if __name__ == "__main__":
    main()
