#!/usr/bin/env python3
"""Records what attention_bench, quant_bench or disk_bench prints, with the machine at its head.

    record.py PROGRAM [ARGUMENTS...] [--bin build/release/bin] [--disk-dir /var/tmp]

Writes tests/bench/results/attention.txt, quant.json or disk.txt: the command, the date, the
processor with its family, model and stepping, its measured peaks and the commit, then what the
program printed, with each rate's share of the peak where the program prints JSON.
"""

import argparse
import json
import os
import subprocess

from machine import headline, machine, today

HERE = os.path.dirname(os.path.abspath(__file__))
FILES = {"attention_bench": "attention.txt", "quant_bench": "quant.json", "disk_bench": "disk.txt"}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("program", choices=sorted(FILES))
    parser.add_argument("arguments", nargs="*")
    parser.add_argument("--bin", default=os.path.join(HERE, "..", "..", "build/release/bin"))
    parser.add_argument("--disk-dir", default="/var/tmp")
    a = parser.parse_args()
    command = [a.program, *a.arguments]
    info = machine(a.bin, a.disk_dir)
    printed = subprocess.run([os.path.join(a.bin, a.program), *a.arguments], check=True,
                             capture_output=True, text=True).stdout
    path = os.path.join(HERE, "results", FILES[a.program])
    if path.endswith(".json"):
        figures = json.loads(printed)
        kind = {"bfloat16": "bf16", "float32": "f32"}[figures["dtype"]]
        peak = info["peak"].get(f"{kind} GFLOP/s", info["peak"]["f32 GFLOP/s"])["median"]
        for row in figures["rates"]:
            if row["what"] == "product, flops":
                row["share_of_peak"] = round(row["giga_per_second"] / peak, 3)
        printed = json.dumps({"command": " ".join(command), "date": today(), "machine": info,
                              **figures}, indent=1) + "\n"
    else:
        printed = f"# {' '.join(command)}; {today()}; {headline(info)}\n{printed}"
    with open(path, "w") as f:
        f.write(printed)
    print(f"written to {os.path.relpath(path)}")


if __name__ == "__main__":
    main()
