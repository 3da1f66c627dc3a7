#!/usr/bin/env python3
"""GGUF files beside llama.cpp on this machine: generated and prompt tokens/s.

    bench_gguf.py --llama-cpp BIN_DIR FILE.gguf... [--bin build/release/bin]
                  [--batches 1,32,256] [--rounds 3]

Each round runs `sluice run` and llama-batched-bench, one after the other, on the
same file, with as many sequences, prompts and new tokens, on all cores. Prints
medians and spread, and records them in tests/bench/results/gguf.json beside the
machine's peaks. make_gguf.py and llama-quantize make the files:

    make_gguf.py f16.gguf --layers 2 --hidden 4096 --heads 32 --kv-heads 8
                 --inner 14336 --vocab 128256
    llama-quantize f16.gguf Q4_0.gguf Q4_0
"""

import argparse
import json
import os
import statistics
import subprocess
import tempfile

from bench_end_to_end import requests_file, summary
from machine import machine, record_case

HERE = os.path.dirname(os.path.abspath(__file__))
# Prompt and new tokens of each sequence: a run takes some seconds.
LENGTHS = {1: (128, 16), 32: (16, 8), 256: (4, 3)}


def sluice(args, file, batch, requests):
    """Prompt and generated tokens/s, of which the first of each sequence counts as the prompt's."""
    prompt, new = LENGTHS[batch]
    run = json.loads(subprocess.run(
        [os.path.join(args.bin, "sluice"), "run", "--model", file, "-i", requests, "-o", os.devnull,
         "--json", "-q", "--dtype", "bfloat16", "--policy",
         f"gbs={max(batch, 128)} num-microbatches=1"],
        check=True, capture_output=True, text=True).stdout.splitlines()[-1])
    assert run["generation_tokens"] == batch * new, run
    return batch * prompt / run["prefill_seconds"], batch * (new - 1) / run["decode_seconds"]


def llama(args, file, batch):
    prompt, new = LENGTHS[batch]
    done = subprocess.run(
        [os.path.join(args.llama_cpp, "llama-batched-bench"), "-m", file, "-c",
         str(2 * batch * (prompt + new)), "-b", "2048", "-ub", "512", "-npp", str(prompt), "-ntg",
         str(new), "-npl", str(batch), "-t", str(os.cpu_count()), "--output-format", "jsonl"],
        check=True, capture_output=True, text=True)
    run = json.loads(next(x for x in done.stdout.splitlines() if x.startswith("{")))
    return batch * prompt / run["t_pp"], batch * new / run["t_tg"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("files", nargs="*", help="none: records the machine's peaks only")
    parser.add_argument("--llama-cpp", help="directory of llama-batched-bench")
    parser.add_argument("--bin", default=os.path.join(HERE, "..", "..", "build/release/bin"))
    parser.add_argument("--batches", default="1,32,256")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    result = os.path.join(HERE, "results", "gguf.json")
    if not args.files:
        record_case(result, "peaks", {}, machine(args.bin))
    info = machine()
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as d:
        for file in args.files:
            for batch in map(int, args.batches.split(",")):
                requests = requests_file(d, [LENGTHS[batch]] * batch)
                rounds = [(sluice(args, file, batch, requests), llama(args, file, batch))
                          for _ in range(args.rounds)]
                case = f"{os.path.basename(file)}, {batch} sequences"
                figures = {"bytes": os.path.getsize(file), "prompt": LENGTHS[batch][0],
                           "new": LENGTHS[batch][1], "rounds": args.rounds}
                for i, what in enumerate(("prompt tokens/s", "generated tokens/s")):
                    ours, theirs = ([r[who][i] for r in rounds] for who in (0, 1))
                    figures[what] = {"sluice": summary(ours), "llama.cpp": summary(theirs),
                                     "times llama.cpp": summary([a / b for a, b in zip(ours, theirs)])}
                    print(f"{case:32} {what:20} sluice {statistics.median(ours):8.1f}   llama.cpp "
                          f"{statistics.median(theirs):8.1f}   "
                          f"{figures[what]['times llama.cpp']['median']:.2f}", flush=True)
                record_case(result, case, figures, info)


if __name__ == "__main__":
    main()
