#!/usr/bin/env python3
"""The offloading runtime on the 1.1B shape, beside its bounds and llama.cpp.

    bench_offload.py [--bin build/release/bin] [--disk-dir DIR] [--rounds 3]
                     [--llama-cpp BIN_DIR --gguf FILE...] [--cases ram,disk,...]

The shape: hidden 2048, 22 layers, 32 heads, 4 KV heads, MLP 5632, vocabulary
32000; random weights, bfloat16; prompts of 128 tokens, 32 generated. Cases:

  ram        everything in memory; bound: oneDNN's products alone; llama.cpp
  disk       in a cgroup of half the model's bytes (v1 or v2; needs root); bound:
             the longer of disk and products; llama.cpp with mmap in the same
  overlap    where disk and compute take about as long: overlap on and off
  kv         all KV on disk; bound: the longer of its bytes at the disk's rate and products
  compress   few sequences, weights from disk: bfloat16, 8 and 4 bits
  ablation   disk, with one technique off at a time (FlexGen, table 5)
  budget     a model of four times the budget, in a cgroup of the budget + 300 MB
  ragged     mixed lengths as HELM's, weights from disk: refilled slots; refill off;
             every request as long as the longest prompt and the longest answer
  diagonal   outputs of 4 times the prompt, weights from disk, KV memory for 32
             sequences of full length: KV by need and staggered, and reserved

The last two take thousands of steps, and therefore a small shape: hidden 1024, 2
layers, 16 heads, 4 KV heads, MLP 2816, vocabulary 8192: 61 MB that each step reads
from the disk, for which it waits as a large model's does.

Each round runs all variants of a case, and what bounds them, one after the
other, so that all meet the same machine. Prints medians and spread, and adds
the case to tests/bench/results/offload.json. Standard library only.
"""

import argparse
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time

from bench_end_to_end import requests_file, summary
from machine import machine, model_flops, record_case, shares

HERE = os.path.dirname(os.path.abspath(__file__))
PROMPT, NEW = 128, 32
SHAPE = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 2048,
         "num_hidden_layers": 22, "num_attention_heads": 32, "num_key_value_heads": 4,
         "intermediate_size": 5632, "vocab_size": 32000, "max_position_embeddings": 2048,
         "rms_norm_eps": 1e-5, "torch_dtype": "bfloat16", "hidden_act": "silu",
         "rope_theta": 10000.0, "tie_word_embeddings": False, "bos_token_id": 1,
         "eos_token_id": 2}
SMALL_SHAPE = {**SHAPE, "hidden_size": 1024, "num_hidden_layers": 2,
               "num_attention_heads": 16, "intermediate_size": 2816, "vocab_size": 8192}
RATE = "generation_tokens_per_second"
MB = 1 << 20


class Cgroup:
    """A memory group of our own, which the commands run in. Page cache counts."""

    def __init__(self, limit):
        self.limit = limit

    def __enter__(self):
        v1 = "/sys/fs/cgroup/memory"
        self.v1 = os.path.isdir(v1)
        self.path = os.path.join(v1 if self.v1 else "/sys/fs/cgroup",
                                 f"sluice-bench-{os.getpid()}")
        os.mkdir(self.path)
        self._write("memory.limit_in_bytes" if self.v1 else "memory.max", self.limit)
        return self

    def _write(self, name, value):
        with open(os.path.join(self.path, name), "w") as f:
            f.write(str(value))

    def enter(self):
        self._write("cgroup.procs", os.getpid())

    def peak(self):
        name = "memory.max_usage_in_bytes" if self.v1 else "memory.peak"
        with open(os.path.join(self.path, name)) as f:
            return int(f.read())

    def __exit__(self, *_):
        for _ in range(50):
            try:
                os.rmdir(self.path)
                return
            except OSError:
                time.sleep(0.1)


class Bench:
    def __init__(self, args, scratch):
        self.args = args
        self.model = os.path.join(scratch, "model")
        self.small_model = os.path.join(scratch, "small")
        self.scratch = scratch
        for path, shape in ((self.model, SHAPE), (self.small_model, SMALL_SHAPE)):
            os.mkdir(path)
            with open(os.path.join(path, "config.json"), "w") as f:
                json.dump(shape, f)
        self.machine = machine(args.bin, args.disk_dir)

    def run(self, model, lengths, *flags, cgroup=None):
        longest = max(prompt for prompt, _ in lengths) + max(new for _, new in lengths)
        done = subprocess.run(
            [os.path.join(self.args.bin, "sluice"), "run", "--model", model,
             "--load-format", "dummy", "-i", requests_file(self.scratch, lengths), "-o", os.devnull,
             "--json", "-q", "--dtype", "bfloat16", "--max-model-len", str(longest), *flags],
            capture_output=True, text=True, preexec_fn=cgroup.enter if cgroup else None)
        if done.returncode != 0:
            sys.exit(f"sluice run {' '.join(flags)} ended with {done.returncode}:\n{done.stderr}")
        run = json.loads(done.stdout.splitlines()[-1])
        assert run["completed"] == len(lengths), run
        assert run["generation_tokens"] == sum(new for _, new in lengths), run
        return run

    def sluice(self, count, *flags, prompt=PROMPT, new=NEW, cgroup=None):
        return self.run(self.model, [(prompt, new)] * count, "--gbs", str(count), *flags,
                        cgroup=cgroup)

    def products(self, count, prompt=PROMPT, new=NEW):
        """Seconds of the matrix products alone, by oneDNN."""
        s = SHAPE
        bound = json.loads(subprocess.run(
            [os.path.join(self.args.bin, "gemm_bound"), "bfloat16", str(s["num_hidden_layers"]),
             str(s["hidden_size"]), "2048", "256", str(s["intermediate_size"]), "1",
             str(s["vocab_size"]), str(count), str(prompt), str(new), "2048"],
            check=True, capture_output=True, text=True).stdout)
        return count * new / bound[RATE]

    def disk_rate(self):
        """Bytes per second that the disk gives a run which waits for nothing else.

        The run has two requests, and its every step waits for the weights. Plain direct reads
        of the whole images are no bound: dd and threads of pread gave 0.9 to 2.0 GB/s where this
        gave 2.9, perhaps as the machine below a virtual disk keeps what is read over and over.
        """
        run = self.half("gbs=128", "max-step-tokens=640", count=2)
        return run["bytes_moved"]["disk_read"] / run["wire_seconds"]["disk_read"]

    def llama(self, gguf, counts, cgroup=None):
        """llama.cpp's best generated tokens/s over group sizes."""
        best = 0
        for count in counts:
            done = subprocess.run(
                [os.path.join(self.args.llama_cpp, "llama-batched-bench"), "-m", gguf, "-c",
                 str(count * (PROMPT + NEW)), "-b", "2048", "-ub", "512", "-npp", str(PROMPT),
                 "-ntg", str(NEW), "-npl", str(count), "-t", str(os.cpu_count()),
                 "--output-format", "jsonl"],
                capture_output=True, text=True, preexec_fn=cgroup.enter if cgroup else None)
            for line in done.stdout.splitlines():
                if line.startswith("{"):
                    run = json.loads(line)
                    best = max(best, run["pl"] * run["tg"] / run["t"])
        return best

    def shares(self, run):
        """Returns what shares of the machine's peaks a run of the large shape had."""
        flops = model_flops(SHAPE, run["prompt_tokens"], run["generation_tokens"],
                            run["completed"])
        return shares(self.machine, run["wall_seconds"], flops, run["bytes_moved"]["disk_read"])

    def peers(self, counts, cgroup=None):
        if not self.args.llama_cpp:
            return {}
        return {os.path.basename(g): self.llama(g, counts, cgroup) for g in self.args.gguf}

    def record(self, case, rounds):
        """rounds: a list of dicts of figures with the same keys."""
        figures = {k: summary([r[k] for r in rounds]) for k in rounds[0]}
        for name, s in figures.items():
            print(f"{case:10} {name:44} {s['median']:10.3f}   {s['least']:10.3f} .. "
                  f"{s['most']:10.3f}", flush=True)
        record_case(self.args.result, case, {"rounds": len(rounds), "figures": figures},
                    self.machine)

    def disk_flags(self):
        return ["--disk-dir", self.args.disk_dir, "--disk-space", "32GiB"]

    # The cases.

    def ram(self):
        count = 64
        rounds = []
        for _ in range(self.args.rounds):
            bound = count * NEW / self.products(count)
            run = self.sluice(count)
            row = {"products alone, tokens/s": bound, "sluice, tokens/s": run[RATE],
                   "share of bound": run[RATE] / bound, **self.shares(run)}
            for name, rate in self.peers((32,)).items():
                row[f"llama.cpp {name}, tokens/s"] = rate
                row[f"times llama.cpp {name}"] = run[RATE] / rate
            rounds.append(row)
        self.record("ram", rounds)

    def half(self, *policy, count=64, flags=()):
        total = 2_200_000_000
        with Cgroup(total // 2) as group:
            run = self.sluice(count, "--host-memory", str(total // 2 - 100 * MB),
                              *self.disk_flags(), *flags,
                              *(["--policy", " ".join(policy)] if policy else []), cgroup=group)
            run["cgroup_peak"] = group.peak()
        return run

    def mixed_products(self, count, gbs, step_tokens):
        """Seconds of the products alone, if prefill and decode share steps of so many rows."""
        s = SHAPE
        bound = json.loads(subprocess.run(
            [os.path.join(self.args.bin, "gemm_bound"), "bfloat16", str(s["num_hidden_layers"]),
             str(s["hidden_size"]), "2048", "256", str(s["intermediate_size"]), "1",
             str(s["vocab_size"]), str(gbs), str(PROMPT), str(NEW), str(step_tokens)],
            check=True, capture_output=True, text=True).stdout)
        layer = sum(p["seconds"] for p in bound["products"] if p["rows"] == step_tokens)
        head = sum(p["seconds"] for p in bound["products"] if p["name"] == "head")
        rows = count * (PROMPT + NEW - 1)
        return rows / step_tokens * s["num_hidden_layers"] * layer + count * NEW / gbs * head

    def disk(self):
        # There are more requests than slots, and a step takes as many new tokens as the slots of
        # this length want: four prompts begin in each while 124 sequences decode, so that every
        # pass over the weights has work for the cores. The last 31 passes begin none: they have
        # fewer and fewer rows, and wait for the disk. Six blocks' requests make them one pass in
        # seven.
        count, gbs, step_tokens = 768, 128, 640
        shape = (f"gbs={gbs}", f"max-step-tokens={step_tokens}")
        self.half(*shape, count=2)  # makes the images
        rounds = []
        for _ in range(self.args.rounds):
            products = self.mixed_products(count, gbs, step_tokens)
            rate = self.disk_rate()
            run = self.half(*shape, count=count)
            disk = run["bytes_moved"]["disk_read"] / rate
            bound = count * NEW / max(disk, products)
            row = {"disk, GB/s": rate * 1e-9, "products alone, s": products,
                   "bytes read at the disk's rate, s": disk, "bound, tokens/s": bound,
                   "sluice, tokens/s": run[RATE], "share of bound": run[RATE] / bound,
                   "share of weights in memory": run["policy"]["realised"]["weights"]["host"],
                   "stall for weights, s": run["stall_seconds"]["weights"],
                   "peak of the cgroup, MB": run["cgroup_peak"] * 1e-6, **self.shares(run)}
            if self.args.llama_cpp:
                with Cgroup(1_100_000_000) as group:
                    # 64 sequences gave 12.6 tokens/s and 192 do not fit.
                    for name, peer in self.peers((128,), group).items():
                        row[f"llama.cpp {name}, tokens/s"] = peer
                        row[f"times llama.cpp {name}"] = run[RATE] / peer if peer else 0
            rounds.append(row)
        self.record("disk", rounds)

    def overlap(self):
        # These are prompts only, in steps of as many rows as take the cores about as long as the
        # weights take the disk: all steps are alike.
        rounds = []
        count, prompt, new, rows = 48, 256, 1, 384
        flags = (*self.disk_flags(), "--policy", f"w=0/0/100 max-step-tokens={rows}")
        self.sluice(2, *flags, prompt=prompt, new=new)  # makes the images
        for _ in range(self.args.rounds):
            on = self.sluice(count, *flags, prompt=prompt, new=new)
            off = self.sluice(count, *flags, "--policy", "overlap=off", prompt=prompt, new=new)
            compute = sum(on["compute_seconds"].values())
            disk = on["wire_seconds"]["disk_read"]
            rounds.append({
                "compute, s": compute, "disk busy, s": disk, "wall, overlap on, s":
                on["wall_seconds"], "wall over the longest resource":
                on["wall_seconds"] / max(compute, disk), "wall, overlap off, s":
                off["wall_seconds"], "off over on": off["wall_seconds"] / on["wall_seconds"], **self.shares(on)})
        self.record("overlap", rounds)

    def kv(self):
        rounds = []
        new = 64
        for _ in range(self.args.rounds):
            rate = self.disk_rate()
            row = {"disk, GB/s": rate * 1e-9}
            # With half of it in memory, the KV is twice the KV memory there is; there the products,
            # the attention and the disk take about as long. With all on disk, a step waits for the
            # disk.
            for name, tiers, count, prompt in (("all on disk", "0/0/100", 16, 1920),
                                               ("half on disk", "0/50/50", 16, 1920)):
                run = self.sluice(count, *self.disk_flags(), "--policy",
                                  f"w=0/100/0 c={tiers} compress-weights=none",
                                  "--max-step-tokens", "2048", prompt=prompt, new=new)
                moved = run["bytes_moved"]
                products = self.products(count, prompt, new)
                bound = max(moved["disk_read"] / rate, products)
                row.update({
                    f"{name}: KV read, GB": moved["disk_read"] * 1e-9,
                    f"{name}: KV written, GB": moved["disk_write"] * 1e-9,
                    f"{name}: wall, s": run["wall_seconds"],
                    f"{name}: decode, s": run["decode_seconds"],
                    f"{name}: stall for KV, s": run["stall_seconds"]["kv_cache"],
                    f"{name}: share of the longest bound": bound / run["wall_seconds"],
                    f"{name}: decode, share of the disk's rate":
                    moved["disk_read"] / rate / run["decode_seconds"]})
            rounds.append(row)
        self.record("kv", rounds)

    def compress(self):
        rounds = []
        count = 8
        for _ in range(self.args.rounds):
            row = {}
            for name in ("none", "int8", "int4"):
                run = self.sluice(count, *self.disk_flags(), "--policy",
                                  f"w=0/0/100 compress-weights={name}", new=64)
                row[f"{name} from disk, tokens/s"] = run[RATE]
                row[f"{name}, compute, s"] = sum(run["compute_seconds"].values())
            for name in ("int8", "int4"):
                row[f"{name} over none"] = (row[f"{name} from disk, tokens/s"] /
                                            row["none from disk, tokens/s"])
            rounds.append(row)
        self.record("compress", rounds)

    def ablation(self):
        # Lengths are mixed, so that slots fall free one by one. The policy of the first row is each
        # other row's, with the one change that its name says.
        rng = random.Random(7)
        lengths = [(rng.randrange(64, 193), rng.randrange(16, 49)) for _ in range(96)]
        new = sum(n for _, n in lengths)
        longest = max(p for p, _ in lengths) + max(n for _, n in lengths)
        memory = 2_200_000_000 // 2 - 100 * MB
        block = ("gbs=16", "num-microbatches=4")
        # Three tiers: a device that holds half of the weights, KV on the host.
        device = ("--device", "cpu-discrete", "--device-memory", "8GiB", "--policy",
                  "w=50/50/0 c=0/100/0")
        rounds = []
        for _ in range(self.args.rounds):
            rates = {}
            for name, model, flags in (
                    ("all", "disk", block),
                    ("no overlap", "disk", (*block, "overlap=off")),
                    ("row by row", "disk", (*block, "schedule=row")),
                    ("one micro-batch", "disk", ("gbs=16", "num-microbatches=1")),
                    ("no refill", "disk", block),
                    ("no packing", "disk", (*block, "packing=off")),
                    ("on a device: all", "device", (*block, "attention-site=host")),
                    ("on a device: no host attention", "device",
                     (*block, "attention-site=device"))):
                flags = ("--policy", " ".join(flags), "--max-step-tokens", "512",
                         *(("--no-refill",) if name == "no refill" else ()))
                if model == "disk":
                    with Cgroup(memory + 100 * MB) as group:
                        run = self.run(self.model, lengths, "--host-memory", str(memory),
                                       *self.disk_flags(), *flags, cgroup=group)
                else:
                    run = self.run(self.model, lengths, *device, *flags)
                rates[name] = new / run["wall_seconds"]
            rounds.append({
                "longest sequence": longest,
                **{f"{name}, tokens/s": rate for name, rate in rates.items()},
                **{f"{name}, share of all": rate / rates["on a device: all" if
                                                        name.startswith("on") else "all"]
                   for name, rate in rates.items() if not name.endswith("all")}})
        self.record("ablation", rounds)

    def budget(self):
        rounds = []
        for _ in range(self.args.rounds):
            budget = 550_000_000
            with Cgroup(budget + 300 * MB) as group:
                run = self.sluice(16, "--host-memory", str(budget), "--max-step-tokens", "512",
                                  *self.disk_flags(), cgroup=group)
                rounds.append({
                    "model over budget": 2_200_000_000 / budget,
                    "charged at most, MB": run["peak_memory_bytes"]["host"] * 1e-6,
                    "budget, MB": budget * 1e-6, "peak of the cgroup, MB": group.peak() * 1e-6,
                    "limit of the cgroup, MB": (budget + 300 * MB) * 1e-6,
                    "sluice, tokens/s": run[RATE]})
        self.record("budget", rounds)

    def ragged(self):
        rng = random.Random(11)

        def length(median, sigma, most):
            return max(1, min(most, round(median * math.exp(rng.gauss(0, sigma)))))
        # Prompts of some dozens to hundreds of tokens, answers from a word to a
        # paragraph: log-normal, cut off at a limit as HELM cuts them.
        lengths = [(length(96, 0.8, 512), length(16, 1.0, 128)) for _ in range(192)]
        longest = (max(p for p, _ in lengths), max(n for _, n in lengths))
        useful = sum(n for _, n in lengths)
        flags = ("--gbs", "32", "--max-step-tokens", "512", *self.disk_flags(), "--policy",
                 "w=0/0/100")
        rounds = []
        for _ in range(self.args.rounds):
            refilled = self.run(self.small_model, lengths, *flags)
            blocks = self.run(self.small_model, lengths, *flags, "--no-refill")
            padded = self.run(self.small_model, [longest] * len(lengths), *flags)
            rate = {name: useful / run["wall_seconds"] for name, run in (
                ("refilled", refilled), ("refill off", blocks), ("padded", padded))}
            rounds.append({
                "prompt, median": statistics.median(p for p, _ in lengths),
                "prompt, longest": longest[0],
                "answer, median": statistics.median(n for _, n in lengths),
                "answer, longest": longest[1],
                **{f"{name}, useful tokens/s": r for name, r in rate.items()},
                "over refill off": rate["refilled"] / rate["refill off"],
                "over padded": rate["refilled"] / rate["padded"],
                "stall for weights, s": refilled["stall_seconds"]["weights"],
                "wall, s": refilled["wall_seconds"]})
        self.record("ragged", rounds)

    def diagonal(self):
        s, n, count, fits, page = 64, 256, 416, 32, 32
        flags = ("--max-step-tokens", "512", *self.disk_flags(), "--policy", "w=0/0/100")
        # The memory in which so many sequences fit in full and no more: how many
        # weights are read ahead depends on it, too.
        memory = 4 << 30
        while True:
            peak = self.run(self.small_model, [(s, n)], *flags, "--gbs", str(fits),
                            "--host-memory", str(memory))["peak_memory_bytes"]["host"]
            if memory - peak < 8192:
                break
            memory = peak + 4096
        flags += ("--gbs", str(2 * fits), "--host-memory", str(memory))
        # A sequence holds so many pages, token by token: sequences in lockstep all hold the last
        # number at their end, spread ones hold the mean.
        pages = [-(-(s + i) // page) for i in range(1, n + 1)]
        rounds = []
        for _ in range(self.args.rounds):
            need = self.run(self.small_model, [(s, n)] * count, *flags)
            reserved = self.run(self.small_model, [(s, n)] * count, *flags, "--reserve-kv")
            rounds.append({
                "by need, tokens/s": need[RATE], "reserved, tokens/s": reserved[RATE],
                "sequences in full that KV memory holds": fits,
                "gain": need[RATE] / reserved[RATE],
                "the paper's (2s+2n)/(2s+n)": (2 * s + 2 * n) / (2 * s + n),
                f"the same in pages of {page}": pages[-1] * n / sum(pages),
                "reads of the weights, reserved over by need":
                reserved["bytes_moved"]["disk_read"] / need["bytes_moved"]["disk_read"],
                "by need, stall for weights, s": need["stall_seconds"]["weights"],
                "by need, wall, s": need["wall_seconds"],
                "reserved, wall, s": reserved["wall_seconds"],
                "memory of both, MB": need["peak_memory_bytes"]["host"] * 1e-6})
            assert (need["peak_memory_bytes"]["host"] ==
                    reserved["peak_memory_bytes"]["host"]), (need, reserved)
        self.record("diagonal", rounds)


def main():
    cases = ("ram", "disk", "overlap", "kv", "compress", "ablation", "budget", "ragged",
             "diagonal")
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--bin", default=os.path.join(HERE, "..", "..", "build/release/bin"))
    parser.add_argument("--disk-dir", default="/var/tmp/sluice-bench")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--llama-cpp", help="directory of llama-batched-bench")
    parser.add_argument("--gguf", nargs="*", default=[], help="models of make_gguf.py")
    parser.add_argument("--cases", default=",".join(cases))
    parser.add_argument("--result", default=os.path.join(HERE, "results", "offload.json"))
    args = parser.parse_args()
    unknown = set(args.cases.split(",")) - set(cases)
    if unknown:
        parser.error(f"no such case: {' '.join(sorted(unknown))}")
    os.makedirs(args.disk_dir, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as scratch:
        bench = Bench(args, scratch)
        for case in args.cases.split(","):
            getattr(bench, case)()


if __name__ == "__main__":
    main()
