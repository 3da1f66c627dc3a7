"""Holds Sluice's tokenizers beside Hugging Face's on many more texts than the golden data has.

    cmake --build build/release --target tokenizer_run
    python compare_tokenizers.py ../../build/release/bin/tokenizer_run [--texts N] [--seed S] [FAMILY...]

Trains each family of tokenizer_families.py anew, and compares the ids with and without special
tokens, and the text of both. Prints the first differences, and how many texts were equal. This
is a tool for whoever changes the tokenizers, not a test: tests have no Python packages.
"""

import argparse
import json
import pathlib
import random
import subprocess
import tempfile

from hostile_strings import EVERYDAY, LONG, hostile_strings, stable_code_points
from make_families import judge_of
from tokenizer_families import FAMILIES


def texts(added, count, seed):
    rng = random.Random(seed)
    known = hostile_strings(added)[:count]
    stable = stable_code_points()
    planes = [[c for c in stable if low <= c < high] for low, high in
              ((0x20, 0x7F), (0, 0x100), (0x100, 0x600), (0x600, 0x3000), (0x3000, 0x10000), (0x10000, 0x110000))]
    marks = "\u0301\u0308\u200d\ufe0f\u0327\u093c\u20e3\r\n\0\u2028\u202e\u00ad▁"
    joined = "".join(EVERYDAY)

    def piece():
        kind = rng.random()
        if kind < 0.3:
            at = rng.randrange(len(joined))
            return joined[at:at + rng.randint(1, 60)]
        if kind < 0.5:
            plane = rng.choice(planes)
            return "".join(chr(rng.choice(plane)) for _ in range(rng.randint(1, 8)))
        if kind < 0.6:
            return rng.choice(marks) * rng.randint(1, 3)
        if kind < 0.7:
            return rng.choice([" ", "  ", "\n", "\r\n", "\t", "\u3000", "\u00a0", "\u2009", "▁"]) * rng.randint(1, 5)
        if kind < 0.8 and added:
            return rng.choice(added)
        if kind < 0.82:
            return rng.choice(LONG)[:rng.randint(1, 3000)]
        return rng.choice(known)[:80]

    while len(known) < count:
        known.append("".join(piece() for _ in range(rng.randint(1, 7))))
    return known


def compare(name, program, count, seed):
    with tempfile.TemporaryDirectory() as temp:
        folder = pathlib.Path(temp)
        FAMILIES[name](folder)
        judge = judge_of(folder)
        cases = texts(judge.added, count, seed)
        lines = "".join(json.dumps(text) + "\n" for text in cases)
        run = subprocess.run([program, folder], input=lines, capture_output=True, text=True, check=False)
        if run.returncode:
            print(f"{name}: {run.stderr.strip()}")
            return False
        answers = [json.loads(line) for line in run.stdout.split("\n")[:-1]]
    equal = shown = 0
    for text, answer in zip(cases, answers, strict=True):
        expected = judge.row(text)
        del expected["text"]
        if answer == expected:
            equal += 1
            continue
        shown += 1
        for key, value in expected.items():
            if shown <= 3 and answer.get(key) != value:
                print(f"{name}: {text[:200]!r}: {key}\n  wants {str(value)[:300]}\n"
                      f"  has   {str(answer.get(key, answer))[:300]}")
    print(f"{name}: {equal} of {len(cases)} equal", flush=True)
    return equal == len(cases)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program")
    parser.add_argument("--texts", type=int, default=10000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("families", nargs="*", metavar="family")
    args = parser.parse_intermixed_args()
    results = [compare(name, args.program, args.texts, args.seed) for name in args.families or FAMILIES]
    raise SystemExit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
