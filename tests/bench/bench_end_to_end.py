#!/usr/bin/env python3
"""`sluice run` beside the time of its matrix products alone.

    bench_end_to_end.py [--bin build/release/bin] [--rounds 5] [--dtype bfloat16]

A random model (hidden 768, 12 layers, 12 heads, MLP 2048, vocabulary 32000), 64
requests of 128 prompt tokens and 32 generated ones. Each round runs gemm_bound
(oneDNN's own products on the same shapes, all cores) and `sluice run`, one after
the other, so that both meet the same machine. Prints a table of medians and
spread, and writes the figures with the machine's description to
tests/bench/results/end_to_end.json. Standard library only.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import tempfile

from machine import machine, model_flops, shares, today

HERE = os.path.dirname(os.path.abspath(__file__))
SEQUENCES, PROMPT, NEW = 64, 128, 32


def requests_file(directory, lengths):
    """A file of random prompts; lengths: (prompt, generated) of each request, or also its beginning's number and
    tokens: requests with the same one begin alike."""
    path = os.path.join(directory, f"requests-{hash(tuple(lengths)):x}.jsonl")
    if not os.path.exists(path):
        rng = random.Random(5)
        with open(path, "w") as f:
            for i, (prompt, new, *alike) in enumerate(lengths):
                begin = []
                for number, tokens in [alike] if alike else []:
                    shared = random.Random(1000 + number)
                    begin = [shared.randrange(5, 8000) for _ in range(tokens)]
                f.write(json.dumps({
                    "custom_id": f"b{i}", "method": "POST", "url": "/v1/completions",
                    "body": {"prompt": begin + [rng.randrange(5, 8000) for _ in range(prompt - len(begin))],
                             "max_tokens": new, "ignore_eos": True, "temperature": 0}}) + "\n")
    return path


def summary(values):
    return {"median": statistics.median(values), "least": min(values), "most": max(values)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--bin", default=os.path.join(HERE, "..", "..", "build/release/bin"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--result", default=os.path.join(HERE, "results", "end_to_end.json"))
    a = parser.parse_args()

    info = machine(a.bin)
    rounds = []
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as d:
        model = os.path.join(d, "model")
        subprocess.run([os.path.join(HERE, "make_random_model.py"), model], check=True)
        with open(os.path.join(model, "config.json")) as f:
            flops = model_flops(json.load(f), SEQUENCES * PROMPT, SEQUENCES * NEW, SEQUENCES)
        rng = random.Random(5)
        requests = os.path.join(d, "in.jsonl")
        with open(requests, "w") as f:
            for i in range(SEQUENCES):
                f.write(json.dumps({
                    "custom_id": f"b{i}", "method": "POST", "url": "/v1/completions",
                    "body": {"prompt": [rng.randrange(5, 1900) for _ in range(PROMPT)],
                             "max_tokens": NEW, "ignore_eos": True,
                             "temperature": 0}}) + "\n")
        # The first round is not counted: after it, files and binaries are cached.
        for number in range(-1, a.rounds):
            bound = json.loads(subprocess.run(
                [os.path.join(a.bin, "gemm_bound"), a.dtype],
                check=True, capture_output=True, text=True).stdout)
            run = json.loads(subprocess.run(
                [os.path.join(a.bin, "sluice"), "run", "--model", model, "-i", requests,
                 "-o", os.devnull, "--json", "-q", "--dtype", a.dtype],
                check=True, capture_output=True, text=True).stdout.splitlines()[-1])
            assert run["completed"] == SEQUENCES, run
            assert run["generation_tokens"] == SEQUENCES * NEW, run
            if number >= 0:
                rounds.append((bound, run))

    rate = "generation_tokens_per_second"
    figures = {
        "date": today(), "machine": info, "dtype": a.dtype,
        "rounds": len(rounds),
        "bound_tokens_per_second": summary([b[rate] for b, _ in rounds]),
        "sluice_tokens_per_second": summary([r[rate] for _, r in rounds]),
        "share_of_bound": summary([r[rate] / b[rate] for b, r in rounds]),
        "prefill_share": summary([b["prefill_seconds"] / r["prefill_seconds"] for b, r in rounds]),
        "decode_share": summary([b["decode_seconds"] / r["decode_seconds"] for b, r in rounds]),
    }
    of_peak = [shares(info, r["prefill_seconds"] + r["decode_seconds"], flops, dtype=a.dtype)
               for _, r in rounds]
    figures |= {name: summary([s[name] for s in of_peak]) for name in of_peak[0]}
    for name, s in figures.items():
        if not isinstance(s, dict) or "median" not in s:
            continue
        print(f"{name:26} median {s['median']:8.2f}   {s['least']:8.2f} .. {s['most']:8.2f}")
    with open(a.result, "w") as f:
        json.dump(figures, f, indent=1)
        f.write("\n")
    print(f"written to {os.path.relpath(a.result)}")


if __name__ == "__main__":
    main()
