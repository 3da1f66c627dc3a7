#!/usr/bin/env python3
"""The same tokens on a device as on the CPU.

    equivalence.py --sluice PROGRAM --model DIR --device cuda [--out FILE] [--tiny]

A trained model in float32, greedy, through `sluice run` on the CPU and then on
the device, under policies that differ in where weights, KV and activations lie
and in how many stages there are. Every answer's text must be the CPU's. One JSON
object to --out or stdout; exit status 1 if an answer differs or a run fails.
Standard library only.
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
POLICIES = [("all on the device", []),
            ("half of the weights on the host", ["--policy", "w=50/50/0"]),
            ("KV on the host, attended there", ["--policy", "c=0/100/0 attention-site=host"]),
            ("KV on the host, attended on the device", ["--policy", "c=0/100/0 attention-site=device"]),
            ("three micro-batches, activations on the host",
             ["--policy", "h=0/100/0 w=0/100/0 gbs=4 num-microbatches=3"]),
            ("two stages", ["--workers", "2"])]


def answers(a, directory, extra):
    """Texts by custom_id, or an error."""
    out = os.path.join(directory, "out.jsonl")
    done = subprocess.run([a.sluice, "run", "--model", a.model, "-i",
                           os.path.join(directory, "in.jsonl"), "-o", out, "--dtype", "float32",
                           "--temperature", "0", "--ignore-eos", "--max-tokens",
                           "8" if a.tiny else "32", "--quiet", *extra],
                          capture_output=True, text=True)
    if done.returncode != 0:
        return None, "\n".join(done.stderr.strip().splitlines()[-4:])
    texts = {}
    with open(out) as f:
        for line in f:
            result = json.loads(line)
            if result["error"]:
                return None, str(result["error"])
            texts[result["custom_id"]] = result["response"]["body"]["choices"][0]["text"]
    return texts, None


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
                f.write(json.dumps({"custom_id": f"p{i}", "method": "POST",
                                    "url": "/v1/completions", "body": {"prompt": prompt}}) + "\n")
        want, error = answers(a, directory, ["--device", "cpu"])
        if error:
            results["error"] = f"on the CPU: {error}"
            failed = True
        else:
            for name, flags in POLICIES:
                memory = ["--device-memory", "256MiB"]
                got, error = answers(a, directory, ["--device", a.device, *memory, *flags])
                if error:
                    entry = {"outcome": "failed", "error": error}
                else:
                    other = sorted(i for i in want if got.get(i) != want[i])
                    entry = {"outcome": "passed" if not other else "failed", "different": other}
                failed |= entry["outcome"] != "passed"
                results["policies"][name] = entry
                if error:
                    print(f"{name}: {error}", file=sys.stderr)
    text = json.dumps(results, indent=1) + "\n"
    if a.out:
        with open(a.out, "w") as f:
            f.write(text)
    else:
        sys.stdout.write(text)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
