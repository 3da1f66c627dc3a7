#!/usr/bin/env python3
"""Answers of unlike lengths from weights on disk: what it gains that the longest go first.

    bench_order.py [--bin build/release/bin] [--disk-dir /var/tmp] [--requests 300] [--rounds 1]

A random model (hidden 768, 2 layers), whose weights all come from the disk in each step, for up to 32 requests at
a time. The lengths of answers are log-normal (median 24, sigma 1, at most 400 tokens), and max_tokens says them.
Each round is `sluice run` with --order input and longest on the same requests; the answers are compared. Writes
the times with the machine's description to tests/bench/results/order.json. Standard library only.
"""

import argparse
import json
import math
import os
import random
import statistics
import subprocess
import tempfile

from machine import machine, today

HERE = os.path.dirname(os.path.abspath(__file__))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--bin", default=os.path.join(HERE, "..", "..", "build/release/bin"))
    parser.add_argument("--disk-dir", default="/var/tmp")
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=1)
    a = parser.parse_args()
    rng = random.Random(11)
    lengths = [min(400, max(1, round(rng.lognormvariate(math.log(24), 1)))) for _ in range(a.requests)]
    figures = {"date": today(), "machine": machine(a.bin, a.disk_dir), "requests": a.requests, "slots": 32,
               "tokens": sum(lengths), "longest": max(lengths)}
    seconds = {"input": [], "longest": []}
    with tempfile.TemporaryDirectory(prefix="sluice-bench-", dir=a.disk_dir) as d:
        model = os.path.join(d, "model")
        subprocess.run([os.path.join(HERE, "make_random_model.py"), model, "--layers", "2", "--vocab", "8000"],
                       check=True)
        source = os.path.join(d, "in.jsonl")
        with open(source, "w") as f:
            for i, n in enumerate(lengths):
                prompt = [rng.randrange(5, 1900) for _ in range(rng.randrange(8, 64))]
                f.write(json.dumps({"custom_id": f"r{i}", "prompt": prompt, "max_tokens": n, "ignore_eos": True,
                                    "temperature": 0}) + "\n")
        answers = []
        for _ in range(a.rounds):
            for order, times in seconds.items():
                target = os.path.join(d, f"{order}.jsonl")
                run = json.loads(subprocess.run(
                    [os.path.join(a.bin, "sluice"), "run", "--model", model, "-i", source, "-o", target, "--json",
                     "-q", "--gbs", "32", "--policy", "w=0/0/100", "--disk-dir", d, "--order", order],
                    check=True, capture_output=True, text=True).stdout.splitlines()[-1])
                assert run["completed"] == a.requests and run["generation_tokens"] == sum(lengths), run
                times.append(run["prefill_seconds"] + run["decode_seconds"])
                print(f"--order {order}: {times[-1]:.1f} s", flush=True)
                with open(target) as f:
                    answers.append([json.loads(line)["response"]["body"]["choices"] for line in f])
        assert all(other == answers[0] for other in answers)
    figures["seconds"] = {order: [round(t, 2) for t in times] for order, times in seconds.items()}
    figures["gain"] = round(statistics.median(i / l for i, l in zip(*seconds.values())), 2)
    print(f"gain: {figures['gain']}")
    with open(os.path.join(HERE, "results", "order.json"), "w") as f:
        json.dump(figures, f, indent=1)
        f.write("\n")


if __name__ == "__main__":
    main()
