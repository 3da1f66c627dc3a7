#!/usr/bin/env python3
"""How fast checkpoints of real sizes are hashed, packed and loaded, beside the disk's rates.

    bench_load.py [--models llama-3-8b,qwen3-8b] [--formats bf16,fp8,gptq,q4_k_m] [--layers 8]
                  [--scratch DIR] [--keep] [--bin build/release/bin] [--memory 3GiB]

Each checkpoint has its model's shape with fewer layers and random numbers, in shards of 5 GB with
an index, or as a GGUF file (which needs the packages gguf and numpy). One after the other is made
in --scratch, measured and removed; with --keep it stays, and one that is there is measured. What is
measured begins with nothing of it in the page cache:

  disk      direct reads of the checkpoint, and direct writes of as much as a layer, by dd
  first     `sluice run` of one short request with all weights on disk: it hashes the files, packs
            the images and reads them once
  images    the same with the hashes known
  second    the same with the images there
  memory    with all weights in memory, the hashes known

GB/s of hashing are bytes of the checkpoint in first less images; of packing, bytes of the images
in images less second. "at best" is what dd's rates alone would take: to read the checkpoint for
hashes, to write the images. Peaks are resident bytes of the process less the budget. Prints a line
for each and records it in tests/bench/results/load.json.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile

from machine import machine, record_case

HERE = os.path.dirname(os.path.abspath(__file__))
SHARD = 5 * 10**9
MODELS = {
    "llama-3-8b": {"hidden": 4096, "heads": 32, "kv-heads": 8, "mlp": 14336, "vocab": 128256},
    "qwen3-8b": {"hidden": 4096, "heads": 32, "kv-heads": 8, "mlp": 12288, "vocab": 151936},
}
LAYER_BYTES = 436 << 20  # of the largest, in bfloat16


def make(args, model, kind, directory):
    """Writes a checkpoint if it is not there; returns what --model takes."""
    shape = {**MODELS[model], "layers": args.layers}
    if kind == "q4_k_m":
        shape["inner"] = shape.pop("mlp")
        path = os.path.join(directory, "model.gguf")
        words = ["make_gguf.py", path, "--type", kind] + ["--qwen3"] * (model == "qwen3-8b")
    else:
        path = directory
        words = ["make_random_model.py", path, "--format", kind, "--shard-bytes", str(SHARD),
                 "--family", "qwen3" if model == "qwen3-8b" else "llama"]
    for name, value in shape.items():
        words += [f"--{name}", str(value)]
    if not os.path.exists(directory):
        os.mkdir(directory)
        subprocess.run([sys.executable, os.path.join(HERE, words[0]), *words[1:]], check=True)
    return path


def files_under(path):
    return [os.path.join(d, name) for d, _, names in os.walk(path) for name in names]


def forget(*directories):
    """Takes files out of the page cache."""
    for path in sum(map(files_under, directories), []):
        with open(path, "rb") as f:
            os.fsync(f.fileno())
            os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def dd(source, target, flag, count):
    """Bytes a second."""
    done = subprocess.run(["dd", f"if={source}", f"of={target}", "bs=16M", f"count={count}", flag],
                          check=True, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"})
    size, _, rest = done.stderr.splitlines()[-1].partition(" bytes")
    return int(size) / float(rest.split(",")[-2].split()[0])


def disk_rates(files, scratch):
    largest = max(files, key=os.path.getsize)
    target = os.path.join(scratch, "written")
    read = dd(largest, "/dev/null", "iflag=direct", 128)
    write = dd("/dev/zero", target, "oflag=direct", LAYER_BYTES >> 24)
    os.unlink(target)
    return read, write


def load(args, model, disk_dir, policy):
    """What a run of one request tells."""
    request = os.path.join(args.scratch, "in.jsonl")
    with open(request, "w") as f:
        json.dump({"custom_id": "0", "method": "POST", "url": "/v1/completions",
                   "body": {"prompt": [3, 4, 5], "max_tokens": 1}}, f)
    done = subprocess.run(
        [os.path.join(args.bin, "sluice"), "run", "--model", model, "-i", request, "-o", os.devnull, "-q",
         "--json", "--dtype", "bfloat16", "--max-model-len", "64", "--disk-dir", disk_dir, *policy],
        check=True, stdout=subprocess.PIPE, text=True)
    run = json.loads(done.stdout.splitlines()[-1])
    assert run["completed"] == 1, run
    return run


def measure(args, checkpoint, directory):
    files = [f for f in files_under(directory) if f.endswith((".safetensors", ".gguf"))]
    size = sum(map(os.path.getsize, files))
    disk_dir = os.path.join(args.scratch, "disk")
    on_disk = ["--policy", "gbs=1 w=0/0/100", "--host-memory", args.memory]
    forget(directory)
    read, write = disk_rates(files, args.scratch)
    steps = (("first", on_disk, None), ("images", on_disk, "images"), ("second", on_disk, None),
             ("memory", ["--policy", "gbs=1 w=0/100/0"], None))
    runs = {}
    for name, policy, removed in steps:
        if removed:
            shutil.rmtree(os.path.join(disk_dir, removed))
        forget(directory, disk_dir)
        runs[name] = load(args, checkpoint, disk_dir, policy)
    images = runs["second"]["weight_image_bytes"]
    seconds = {name: run["load_seconds"] for name, run in runs.items()}
    budget = runs["images"]["peak_memory_bytes"]["host"]
    return {
        "bytes": size, "image bytes": images, "seconds": seconds,
        "disk GB/s": {"read": read / 1e9, "write": write / 1e9},
        "GB/s": {"hash": size / (seconds["first"] - seconds["images"]) / 1e9,
                 "images": images / (seconds["images"] - seconds["second"]) / 1e9,
                 "memory": size / seconds["memory"] / 1e9},
        "seconds at best": {"hash": size / read, "images": max(size / read, images / write),
                            "memory": size / read},
        "peak MB": {name: run["peak_memory_bytes"]["resident"] / 1e6 for name, run in runs.items()},
        "peak of the budget MB": budget / 1e6,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--formats", default="bf16,fp8,gptq,q4_k_m")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--memory", default="3GiB", help="budget of the runs with weights on disk")
    parser.add_argument("--scratch", default="/var/tmp")
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--bin", default=os.path.join(HERE, "..", "..", "build/release/bin"))
    args = parser.parse_args()
    info = machine()
    checkpoints = args.scratch
    with tempfile.TemporaryDirectory(prefix="sluice-load-", dir=args.scratch) as args.scratch:
        for model in args.models.split(","):
            for kind in args.formats.split(","):
                case = f"{model}, {args.layers} layers, {kind}"
                directory = os.path.join(checkpoints, case.replace(", ", "-").replace(" ", "-"))
                figures = measure(args, make(args, model, kind, directory), directory)
                print(case, json.dumps(figures, indent=1), flush=True)
                record_case(os.path.join(HERE, "results", "load.json"), case, figures, info)
                shutil.rmtree(os.path.join(args.scratch, "disk"))
                if not args.keep:
                    shutil.rmtree(directory)


if __name__ == "__main__":
    main()
