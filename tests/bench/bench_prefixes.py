#!/usr/bin/env python3
"""Questions to documents: what it gains that a document is computed once for all of them.

    bench_prefixes.py [--bin build/release/bin] [--documents 64] [--alone 2] [--questions 20] [--dtype bfloat16]

A random model (hidden 1024, 2 layers, MLP 2816), documents of 700 tokens, each with questions of 20 tokens that
are answered with 8. `sluice run` with --share-prefixes off, on the first few documents (its rate is the same for
all, and takes its time), and with on, on all; the answers to the former are compared. Writes the rates with the
machine's description to tests/bench/results/prefixes.json. Standard library only.
"""

import argparse
import json
import os
import random
import subprocess
import tempfile

from machine import machine, today

HERE = os.path.dirname(os.path.abspath(__file__))
DOCUMENT, QUESTION, ANSWER = 700, 20, 8


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--bin", default=os.path.join(HERE, "..", "..", "build/release/bin"))
    parser.add_argument("--documents", type=int, default=64)
    parser.add_argument("--alone", type=int, default=2)
    parser.add_argument("--questions", type=int, default=20)
    parser.add_argument("--dtype", default="bfloat16")
    a = parser.parse_args()
    figures = {"date": today(), "machine": machine(), "dtype": a.dtype, "documents": a.documents,
               "questions": a.questions, "tokens": {"document": DOCUMENT, "question": QUESTION, "answer": ANSWER}}
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as d:
        model = os.path.join(d, "model")
        subprocess.run([os.path.join(HERE, "make_random_model.py"), model, "--hidden", "1024", "--layers", "2",
                        "--heads", "16", "--mlp", "2816", "--vocab", "8000"], check=True)
        rng = random.Random(5)
        lines = []
        for i in range(a.documents):
            document = [rng.randrange(5, 1900) for _ in range(DOCUMENT)]
            for k in range(a.questions):
                prompt = document + [rng.randrange(5, 1900) for _ in range(QUESTION)]
                lines.append(json.dumps({"custom_id": f"d{i}-{k}", "prompt": prompt, "max_tokens": ANSWER,
                                         "ignore_eos": True, "temperature": 0}) + "\n")
        answers = []
        for sharing, requests in (("off", a.alone * a.questions), ("on", len(lines))):
            source = os.path.join(d, "in.jsonl")
            with open(source, "w") as f:
                f.writelines(lines[:requests])
            target = os.path.join(d, f"{sharing}.jsonl")
            run = json.loads(subprocess.run(
                [os.path.join(a.bin, "sluice"), "run", "--model", model, "-i", source, "-o", target, "--json", "-q",
                 "--dtype", a.dtype, "--share-prefixes", sharing],
                check=True, capture_output=True, text=True).stdout.splitlines()[-1])
            assert run["completed"] == requests, run
            seconds = run["prefill_seconds"] + run["decode_seconds"]
            figures[sharing] = {"requests": requests, "seconds": round(seconds, 2), "requests_per_second": round(requests / seconds, 2),
                                "prompt_tokens": run["prompt_tokens"], "cached_tokens": run["cached_tokens"]}
            print(f"--share-prefixes {sharing:3}: {figures[sharing]}", flush=True)
            with open(target) as f:
                answers.append([json.loads(line)["response"]["body"]["choices"] for line in f])
        assert answers[0] == answers[1][:len(answers[0])]
    figures["gain"] = round(figures["on"]["requests_per_second"] / figures["off"]["requests_per_second"], 2)
    print(f"gain: {figures['gain']}")
    with open(os.path.join(HERE, "results", "prefixes.json"), "w") as f:
        json.dump(figures, f, indent=1)
        f.write("\n")


if __name__ == "__main__":
    main()
