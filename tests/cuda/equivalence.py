#!/usr/bin/env python3
"""A trained model's tokens on a device and on the CPU.

    equivalence.py --sluice PROGRAM --model DIR [--device cuda] [--out FILE] [--tiny]

The model, greedy, through `sluice run` on the CPU in float32 and then on the device,
under policies that differ in where weights, KV and activations lie and in how many
stages there are. In float32 each token must be the CPU's. In 16 bits a token that is
nearly as likely as the best one may take its place, and everything after it is another
text; so up to there, that one included, each token must be one that float32 finds as
likely as its own choice, and must have the log-probability that float32 gives it, to
within BOUNDS. Those are some times what rounding costs, and far below what an error
does. One JSON object to --out or stdout; exit status 1 if an answer differs or a run
fails. Standard library only.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile

PROMPTS = ["In the beginning", "And the LORD said unto Moses", "The words of", "And it came to pass",
           "Blessed are", "Now these are the names", "Behold, I", "And he said unto them",
           "For the king", "Thus saith", "And when they heard", "O give thanks unto the LORD"]
POLICIES = [("all on the device", "float32", []),
            ("half of the weights on the host", "float32", ["--policy", "w=50/50/0"]),
            ("KV on the host, attended there", "float32",
             ["--policy", "c=0/100/0 attention-site=host"]),
            ("KV on the host, attended on the device", "float32",
             ["--policy", "c=0/100/0 attention-site=device"]),
            ("three micro-batches, activations on the host", "float32",
             ["--policy", "h=0/100/0 w=0/100/0 gbs=4 num-microbatches=3"]),
            ("two stages", "float32", ["--workers", "2"]),
            ("float16, all on the device", "float16", []),
            ("float16, weights on the host, KV attended there", "float16",
             ["--policy", "w=0/100/0 c=0/100/0 attention-site=host"]),
            ("bfloat16, all on the device", "bfloat16", [])]
# Bounds on the errors of log-probabilities.
BOUNDS = {"float32": 1e-3, "float16": 0.02, "bfloat16": 0.15}
TOP = 5  # of the likeliest tokens, float32 tells as many at each place
NO_BFLOAT16 = "no products in bfloat16"  # what sluice says of GPUs before 8.0


def answers(a, directory, dtype, extra):
    """Returns ({custom_id: [(token, log-probability, {token: log-probability}), ...]}, None), or
    (None, an error)."""
    out = os.path.join(directory, "out.jsonl")
    done = subprocess.run([a.sluice, "run", "--model", a.model, "-i",
                           os.path.join(directory, "in.jsonl"), "-o", out, "--dtype", dtype,
                           "--temperature", "0", "--ignore-eos", "--max-tokens",
                           "8" if a.tiny else "32", "--quiet", *extra],
                          capture_output=True, text=True)
    if done.returncode != 0:
        return None, "\n".join(done.stderr.strip().splitlines()[-4:])
    found = {}
    with open(out) as f:
        for line in f:
            result = json.loads(line)
            if result["error"]:
                return None, str(result["error"])
            logprobs = result["response"]["body"]["choices"][0]["logprobs"]
            found[result["custom_id"]] = list(zip(
                logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"]))
    return found, None


def compare(got, want, dtype):
    """Returns the record of a policy's answers beside the CPU's."""
    bound = BOUNDS[dtype]
    tokens = same = 0
    largest = 0.0
    wrong = []
    for key, expected in want.items():
        answer = got.get(key, [])
        if len(answer) != len(expected):
            wrong.append(f"{key} has {len(answer)} tokens, not {len(expected)}")
        for place, (g, w) in enumerate(zip(answer, expected)):
            tokens += 1
            here = w[2].get(g[0])
            if here is None:
                wrong.append(f"{key}, token {place}: {g[0]!r}, which is none of float32's {TOP} likeliest")
                break
            # Two numbers count: how far the log-probability is off, and, where the token is not
            # float32's choice, how much less likely it is.
            largest = max(largest, abs(g[1] - here), w[1] - here)
            if g[0] != w[0]:
                if dtype == "float32":
                    wrong.append(f"{key}, token {place}: {g[0]!r}, not {w[0]!r}")
                break
            same += 1
    if largest > bound:
        wrong.append(f"a log-probability is off by {largest:.3g}")
    return {"outcome": "failed" if wrong else "passed", "compared_tokens": tokens,
            "same_tokens": same, "largest_difference": largest, "bound": bound, "wrong": wrong[:8]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sluice", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out")
    parser.add_argument("--tiny", action="store_true", help="fewer prompts and tokens")
    a = parser.parse_args()
    prompts = PROMPTS[:5] if a.tiny else PROMPTS
    results = {"device": a.device, "prompts": len(prompts), "policies": {}}
    failed = False
    with tempfile.TemporaryDirectory(prefix="sluice-equivalence-") as directory:
        with open(os.path.join(directory, "in.jsonl"), "w") as f:
            for i, prompt in enumerate(prompts):
                f.write(json.dumps({"custom_id": f"p{i}", "method": "POST", "url": "/v1/completions",
                                    "body": {"prompt": prompt, "logprobs": TOP}}) + "\n")
        want, error = answers(a, directory, "float32", ["--device", "cpu"])
        if error:
            results["error"] = f"on the CPU: {error}"
            failed = True
        else:
            for name, dtype, flags in POLICIES:
                got, error = answers(a, directory, dtype, ["--device", a.device, "--device-memory",
                                                           "256MiB", *flags])
                if error and NO_BFLOAT16 in error:
                    entry = {"outcome": "skipped", "why": error}
                elif error:
                    entry = {"outcome": "failed", "wrong": [error]}
                else:
                    entry = compare(got, want, dtype)
                if entry["outcome"] == "failed":
                    failed = True
                    print(f"{name}: {'; '.join(entry['wrong'])}", file=sys.stderr)
                results["policies"][name] = entry
    text = json.dumps(results, indent=1) + "\n"
    if a.out:
        with open(a.out, "w") as f:
            f.write(text)
    else:
        sys.stdout.write(text)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
