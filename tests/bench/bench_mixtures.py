#!/usr/bin/env python3
"""A mixture of experts larger than memory, beside its bounds and llama.cpp.

    bench_mixtures.py FILE.gguf --memory 2457 --llama-cpp BIN_DIR [--sequences 512]
                      [--prompt 4] [--new 4] [--peers 1,64,256] [--rounds 1]
                      [--disk-dir DIR] [--bin build/release/bin] [--label NAME]

make_mixture.py makes the file. Each round runs `sluice run` and then llama-batched-bench under
mmap (without copies of weights in other orders, for which there is no memory), on the same file and in a cgroup of the same memory (v1 or v2; needs root; page cache
counts), with so many sequences each. A first run of Sluice, which is not counted, makes the
images. Prints medians and spread, and adds the case to tests/bench/results/mixtures.json:
decoded tokens/s; what was read from the disk, by the rate that the disk gives a run which waits
for nothing else; and the share of that bound. Standard library only.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile

from bench_end_to_end import requests_file, summary
from bench_offload import Cgroup
from machine import machine, record_case

HERE = os.path.dirname(os.path.abspath(__file__))
MIB = 1 << 20
# llama.cpp gets this long for each number of sequences.
PEER_SECONDS = 200


def sluice(args, sequences, new, scratch):
    """What a run prints, and the peak of its group in bytes."""
    requests = requests_file(scratch, [(args.prompt, new)] * sequences)
    with Cgroup(args.memory * MIB) as group:
        done = subprocess.run(
            [os.path.join(args.bin, "sluice"), "run", "--model", args.file, "-i", requests, "-o",
             os.devnull, "--json", "-q", "--dtype", "bfloat16", "--max-model-len",
             str(args.prompt + new), "--host-memory", str((args.memory - 150) * MIB),
             "--disk-dir", args.disk_dir, "--disk-space", "40GiB", "--gbs", str(sequences),
             *(["--policy", args.policy] if args.policy else [])],
            capture_output=True, text=True, preexec_fn=group.enter)
        if done.returncode != 0:
            sys.exit(f"sluice run ended with {done.returncode}:\n{done.stderr}")
        run = json.loads(done.stdout.splitlines()[-1])
        run["cgroup_peak"] = group.peak()
    assert run["completed"] == sequences, run
    assert run["generation_tokens"] == sequences * new, run
    return run


def llama(args, sequences):
    """llama.cpp's decoded tokens/s, or None if it took too long or did not run."""
    # Of many sequences, only what is decoded is compared.
    prompt, new = (args.prompt, 8) if sequences == 1 else (1, 2)
    with Cgroup(args.memory * MIB) as group:
        try:
            done = subprocess.run(
                [os.path.join(args.llama_cpp, "llama-batched-bench"), "-m", args.file, "-c",
                 str(max(256, sequences * (prompt + new))), "-b", "512", "-ub", "512",
                 "-npp", str(prompt), "-ntg", str(new), "-npl", str(sequences), "-t",
                 str(os.cpu_count()), "--no-repack", "--output-format", "jsonl"],
                capture_output=True, text=True, preexec_fn=group.enter, timeout=PEER_SECONDS)
        except subprocess.TimeoutExpired:
            return None
    lines = [x for x in done.stdout.splitlines() if x.startswith("{")]
    return sequences * new / json.loads(lines[-1])["t_tg"] if lines else None


def one_round(args, scratch):
    alone = sluice(args, 1, 4, scratch)
    rate = alone["bytes_moved"]["disk_read"] / alone["wire_seconds"]["disk_read"]
    run = sluice(args, args.sequences, args.new, scratch)
    # The first token of a sequence is the prompt's.
    row = {"sluice, decoded tokens/s": args.sequences * (args.new - 1) / run["decode_seconds"],
           "sluice, prompt seconds": run["prefill_seconds"],
           "disk, GB/s": rate * 1e-9, "read, GB": run["bytes_moved"]["disk_read"] * 1e-9,
           "wire of the disk, share of the time":
               run["wire_seconds"]["disk_read"] / (run["prefill_seconds"] + run["decode_seconds"]),
           "bytes at the disk's rate, share of the time":
               run["bytes_moved"]["disk_read"] / rate
               / (run["prefill_seconds"] + run["decode_seconds"]),
           "peak of the cgroup, MiB": run["cgroup_peak"] / MIB}
    best, single = 0, None
    for count in args.peers if args.llama_cpp else ():
        peer = llama(args, count)
        print(f"llama.cpp, {count} sequences: {peer}", flush=True)
        if peer is None:
            continue
        row[f"llama.cpp, {count} sequences, decoded tokens/s"] = peer
        best = max(best, peer)
        single = peer if count == 1 else single
    if best:
        row["times llama.cpp's best"] = row["sluice, decoded tokens/s"] / best
    if single:
        row["times llama.cpp's single stream"] = row["sluice, decoded tokens/s"] / single
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("file")
    parser.add_argument("--memory", type=int, required=True, help="of the cgroup, MiB")
    parser.add_argument("--llama-cpp", help="directory of llama-batched-bench")
    parser.add_argument("--bin", default=os.path.join(HERE, "..", "..", "build/release/bin"))
    parser.add_argument("--disk-dir", default="/var/tmp/sluice-mixtures")
    parser.add_argument("--sequences", type=int, default=512)
    parser.add_argument("--prompt", type=int, default=4)
    parser.add_argument("--new", type=int, default=4)
    parser.add_argument("--peers", type=lambda s: [int(x) for x in s.split(",")],
                        default=[1, 64, 256])
    parser.add_argument("--policy", help="words for --policy")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--label", help="the case's name; the file's unless given")
    args = parser.parse_args()
    os.makedirs(args.disk_dir, exist_ok=True)
    info = machine(args.bin, args.disk_dir)
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as scratch:
        sluice(args, 1, args.new, scratch)  # makes the images
        rounds = [one_round(args, scratch) for _ in range(args.rounds)]
    case = args.label or os.path.basename(args.file)
    figures = {k: summary([r[k] for r in rounds if k in r]) for k in rounds[0]}
    for name, s in figures.items():
        print(f"{case:20} {name:50} {s['median']:10.3f}   {s['least']:10.3f} .. {s['most']:10.3f}")
    record_case(os.path.join(HERE, "results", "mixtures.json"), case,
                {"bytes": os.path.getsize(args.file), "memory, MiB": args.memory,
                 "sequences": args.sequences, "prompt": args.prompt, "new": args.new,
                 "rounds": args.rounds, "figures": figures}, info)


if __name__ == "__main__":
    main()
