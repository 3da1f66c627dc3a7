#!/usr/bin/env python3
"""Whole models of real size over machines of real scarcity, and what the second machine is worth.

    bench_cluster.py [--bin build/release/bin] [--disk-dir DIR] [--cases llama-3-8b/1,...]

Each stage is a process in control groups of its own (memory, one core, its share of the disk;
v1; needs root) and in a network namespace of its own, with dummy weights of the model's shape,
so that anyone can run it. Its profile is measured within them. The planner chooses the policy;
predicted is beside measured, with the resource that binds and the share of it that was used.

  llama-3-8b/N   16 GB in bf16: one worker with 8 GiB, two with 6, three with 4
  opt-30b/2      in 4 bits over two workers with 8 GiB
  llama-3-70b/1  in 4 bits, about 40 GB on disk, in 16 GiB, both cores
  scaling/...    decode of Llama-3.2-1B's shape by one worker and by two, of a core each: with
                 memory for half of the model and its share of KV (disk), and for all (memory)
  stages/4       four stages of half a core each: the share of time in which they are busy
  slices/4       two prompts of 4,000 tokens through four stages of half a core each, of a layer of
                 Llama-3-8B's each: with slices as planned, and without
  unlike/3       three workers of 1 : 2 : 4 speed, balanced, beside what each does alone: by itself,
                 and while the two others work alone, too, as they share this machine's caches and memory

Adds each case to tests/bench/results/cluster.json. Standard library only. Run it on a machine
that does nothing else.
"""

import argparse
import concurrent.futures
import contextlib
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time

from bench_cuda import SHAPES, llama
from bench_end_to_end import requests_file
from machine import machine, record_case
from small_machines import Cluster, Network, SmallMachine

HERE = os.path.dirname(os.path.abspath(__file__))
GIB = 1 << 30
# What a worker's process takes beside its budgets: code, gRPC, oneDNN's scratch, page tables.
PROCESS = 400 << 20
SHAPES = {**SHAPES, "llama-1b": llama(2048, 16, 32, 8, 8192, head_dim=64, tie_word_embeddings=True),
          # More layers, and smaller ones, to divide by speed.
          "llama-1.1b": llama(2048, 22, 32, 4, 5632, vocab_size=32000),
          "llama-3-8b, 4 layers": llama(4096, 4, 32, 8, 14336)}

# model, number of workers, memory of each, weight format, requests x (prompt, generated): so many,
# or so short prompts, that one resource binds in prompts as in answers
WHOLE = {
    "llama-3-8b/1": ("llama-3-8b", 1, 8 * GIB, "none", [(32, 16)] * 96),
    "llama-3-8b/2": ("llama-3-8b", 2, 6 * GIB, "none", [(8, 32)] * 64),
    "llama-3-8b/3": ("llama-3-8b", 3, 4 * GIB, "none", [(8, 24)] * 144),
    "opt-30b/2": ("opt-30b", 2, 8 * GIB, "int4", [(8, 24)] * 64),
    "llama-3-70b/1": ("llama-3-70b", 1, 16 * GIB, "int4", [(4, 20)] * 32),
}


MIB = 1 << 20
# Short prompts, so that what is measured is decoding.
DECODE = [(16, 64)] * 192
STAGES = [(16, 96)] * 160
# Too few to keep four stages busy in turn.
SLICES = [(4000, 16)] * 2
# So many that each of several blocks is as large as the block of one worker alone.
UNLIKE = [(16, 32)] * 288
# name: memory of a worker of each of the two clusters
SCALING = {"scaling/disk": 1900 * MIB, "scaling/memory": 4600 * MIB}


class Bench:
    def __init__(self, args, scratch):
        self.args, self.scratch = args, scratch
        self.info = machine(args.bin, args.disk_dir) if args.result else {}
        self.cores = os.cpu_count()
        self.first_core = 0  # that is given away when several are as free

    def model(self, name):
        path = os.path.join(self.scratch, name)
        if not os.path.exists(path):
            os.mkdir(path)
            with open(os.path.join(path, "config.json"), "w") as f:
                json.dump(SHAPES[name], f)
        return path

    def machines(self, stack, network, shares, memory, disk):
        """Machines that share nothing, each with a share of a core: `shares` in cores' time."""
        rate = self.args.disk_rate * 1e6 / disk if disk else 0
        cores, free = {}, [1.0] * self.cores
        for i in sorted(range(len(shares)), key=lambda i: -shares[i]):  # so that all find room
            core = max(range(self.cores), key=lambda c: (free[c], c == self.first_core))
            free[core] -= shares[i]
            cores[i] = str(core)
        if min(free) < -1e-9:  # not a core for each
            cores = dict.fromkeys(cores, f"0-{self.cores - 1}")
        made = []
        for i, share in enumerate(shares):
            made.append(stack.enter_context(SmallMachine(
                f"m{i}", cores=cores[i], share=min(1.0, share), memory=memory,
                disk=(rate, rate) if rate else None, network=network)))
        return made

    def profiles(self, groups, shares):
        """The machines' profiles, measured within them and all at once, as workers do when they
        begin together; or those of a cluster just like it."""
        rate = int(groups[0].disk[0]) if groups[0].disk else 0
        kind = "-".join(str(g.share) for g in groups) + f"-{groups[0].memory}-{rate}"
        paths = [os.path.join(self.scratch, f"profile-{kind}-{g.name}.json") for g in groups]
        if not os.path.exists(paths[0]):
            running = [subprocess.Popen(
                [os.path.join(self.args.bin, "sluice"), "profile", "--threads", str(math.ceil(share)),
                 "--host-memory", str(group.memory - PROCESS), "--disk-dir", self.directory(group),
                 "--disk-space", "80GiB", "-o", path, "-q"], preexec_fn=group.enter,
                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
                for group, share, path in zip(groups, shares, paths)]
            for profile in running:
                _, error = profile.communicate()
                if profile.returncode != 0:
                    sys.exit(f"sluice profile: {error}")
        return paths

    def directory(self, group):
        directory = os.path.join(self.args.disk_dir, group.name)
        shutil.rmtree(directory, ignore_errors=True)
        os.makedirs(directory)
        return directory

    def cluster(self, stack, model, shares, memory, lengths, *flags, disk):
        """Starts a coordinator and a worker on each of such machines; returns both."""
        longest = max(p + n for p, n in lengths)
        network = stack.enter_context(Network())
        groups = self.machines(stack, network, shares, memory, disk)
        workers = []
        for group, share, profile in zip(groups, shares, self.profiles(groups, shares)):
            kept = ["--disk-dir", self.directory(group), "--disk-space", "80GiB"] if disk else []
            workers.append((group.name, [
                "--threads", str(math.ceil(share)), "--host-memory", str(memory - PROCESS), *kept,
                "--profile", profile], group))
        return stack.enter_context(Cluster(
            self.args.bin, self.scratch, self.model(model), workers, "--dtype", "bfloat16",
            "--max-model-len", str(longest), "--split", "balanced", *flags,
            host=network.address)), groups

    def run(self, name, model, shares, memory, lengths, *flags, disk=0):
        """Runs a job over such machines, each with one of `disk` shares of the disk (0: none);
        returns what is recorded."""
        with contextlib.ExitStack() as stack:
            cluster, groups = self.cluster(stack, model, shares, memory, lengths, *flags, disk=disk)
            begin = time.time()
            job = cluster.submit(requests_file(self.scratch, lengths))
            figures = self.follow(cluster, job, begin, lengths)
            figures["requests"] = f"{len(lengths)} x {lengths[0][0]} + {lengths[0][1]}"
            figures["memory"] = [{"peak": g.peak_memory(), "limit": memory} for g in groups]
        print(f"{name:24} {figures['tokens_per_second']:8.2f} tokens/s, predicted "
              f"{figures['predicted_tokens_per_second']:8.2f}; decode "
              f"{figures['decode_tokens_per_second']:8.2f}; loaded in "
              f"{figures['load_seconds']:.0f} s; {figures['binding']} "
              f"{figures['share of the binding resource']:.2f}, busy "
              f"{' '.join(f'{b:.2f}' for b in figures['busy'])}", flush=True)
        return figures

    def follow(self, cluster, job, begin, lengths):
        """Watches the job to its end; the rate counts from the first step on."""
        last = ""
        while True:
            now = cluster.status(job)
            state = cluster.cluster()
            line = f"{now['status']}: {state['state']} {now.get('detail', '')}"
            if line != last and self.args.verbose:
                print(f"  {time.time() - begin:6.1f} s  {line}", flush=True)
            last = line
            if now["status"] != "in_progress":
                sys.exit(f"the job has ended as {now['status']} before its first step")
            if state["state"] == "running":
                break
            time.sleep(0.5)
        first = time.time()
        plan = now["plan"]  # a later one would know what was measured
        cluster.client("watch", job)  # looking more often takes time from the cores
        seconds = time.time() - first
        now = cluster.status(job)
        state = cluster.cluster()
        shares = []
        for w in state["workers"]:
            busy, waiting = w["busy_seconds"], w["waiting_seconds"]
            shares.append(busy / (busy + waiting) if busy + waiting > 0 else 0)
        assert now["request_counts"]["completed"] == len(lengths), now
        binding = plan["predicted"]["binding"]
        used = [u["measured_seconds"] / w["plan_seconds"] for w in state["workers"]
                for u in w.get("resources", []) if u["resource"] == binding and w.get("plan_seconds")]
        workers = [{"name": w["name"], "layers": w.get("layers"), "resources": w.get("resources"),
                    "plan_seconds": w.get("plan_seconds"),
                    "busy": w.get("busy_seconds"), "waiting": w.get("waiting_seconds")}
                   for w in state["workers"]]
        return {"tokens_per_second": now["generation_tokens"] / seconds, "seconds": seconds,
                "load_seconds": first - begin, "busy": shares,
                "decode_tokens_per_second": now["generation_tokens"] /
                max(1e-9, state["decode_seconds"]),
                "predicted_tokens_per_second": plan["predicted"]["tokens_per_second"],
                "binding": binding, "share of the binding resource": max(used, default=0),
                "prefill_seconds": state.get("prefill_seconds"),
                "decode_seconds": state.get("decode_seconds"), "workers": workers, "plan": plan}

    def record(self, case, figures):
        if self.args.result:
            record_case(self.args.result, case, figures, self.info)

    def whole(self, case):
        model, number, memory, weights, lengths = WHOLE[case]
        shares = [min(1.0, self.cores / number)] * number
        if number == 1 and memory >= 16 * GIB:
            shares = [float(self.cores)]
        self.record(case, self.run(case, model, shares, memory, lengths, "--policy",
                                   f"compress-weights={weights}", disk=number))

    def scaling(self, case):
        """One worker, then two of the same kind: what the second one is worth."""
        one = self.run(case + ", one", "llama-1b", [1.0], SCALING[case], DECODE, disk=2)
        two = self.run(case + ", two", "llama-1b", [1.0, 1.0], SCALING[case], DECODE,
                       "--replicas", "1", disk=2)
        figures = {"one": one, "two": two}
        for kind in ("decode_tokens_per_second", "tokens_per_second", "predicted_tokens_per_second"):
            figures["two over one, " + kind] = two[kind] / one[kind]
            print(f"{case:24} {kind}: two over one {two[kind] / one[kind]:.2f}", flush=True)
        self.record(case, figures)

    def stages(self, case):
        figures = self.run(case, "llama-1b", [0.5] * 4, 3 * GIB, STAGES, "--replicas", "1")
        self.record(case, figures)

    def slices(self, case):
        """Long prompts with and without slices that follow each other through the stages."""
        run = [case, "llama-3-8b, 4 layers", [0.5] * 4, 4 * GIB, SLICES, "--replicas", "1"]
        planned = self.run(*run)
        without = self.run(run[0] + ", without", *run[1:], "--policy", "slicing=off")
        ratio = without["prefill_seconds"] / planned["prefill_seconds"]
        print(f"{case:24} prefill {without['prefill_seconds']:.1f} s without slices, "
              f"{planned['prefill_seconds']:.1f} s with them: {ratio:.2f}", flush=True)
        self.record(case, {"planned": planned, "without": without, "prefill ratio": ratio})

    def run_from(self, core, *run):
        self.first_core = core
        return self.run(*run)

    def at_once(self, runs):
        """The figures of runs in processes of their own: (first core, arguments of run)."""
        with concurrent.futures.ProcessPoolExecutor(len(runs)) as pool:
            started = [pool.submit(self.run_from, core, *run) for core, run in runs]
            return [run.result() for run in started]

    def unlike(self, case):
        """Workers of 1 : 2 : 4 speed; the bound is the sum of what each does alone, with the others
        at work."""
        shares = [0.25, 0.5, 1.0]
        model, memory = "llama-1.1b", 4600 * MIB
        alone = [self.run(f"{case}, {share} of a core", model, [share], memory, UNLIKE[:96])
                 for share in shares]
        # As many requests for each as its share of the work, on the cores that it has among three.
        beside = self.at_once([
            (0 if share == 1.0 else 1, (f"{case}, {share} beside others", model, [share], memory,
                                        UNLIKE[:round(len(UNLIKE) * share / sum(shares))]))
            for share in shares])
        all_three = self.run(case, model, shares, memory, UNLIKE, "--replicas", "1")
        figures = {"alone": alone, "alone beside others": beside, "balanced": all_three}
        for of in ("alone", "alone beside others"):
            share = all_three["tokens_per_second"] / sum(a["tokens_per_second"] for a in figures[of])
            figures[f"share of the sum, {of}"] = share
            print(f"{case:24} {share:.2f} of the sum of each {of}", flush=True)
        self.record(case, figures)


def runs_of(case, entry):
    """(name, figures) of each run of a recorded case."""
    if "plan" in entry:
        return [(case, entry)]
    found = []
    for key, value in entry.items():
        for i, run in enumerate(value if isinstance(value, list) else [value]):
            if isinstance(run, dict) and "plan" in run:
                found.append((f"{case}, {key}" + (f" {i + 1}" if isinstance(value, list) else ""), run))
    return found


def write_table(path):
    """Writes what is recorded as a table for people, beside it."""
    with open(path) as f:
        results = json.load(f)
    lines = ["# Several workers on one machine", "",
             "Made by `bench_cluster.py` from `cluster.json`, which has the machines, plans and all figures. Tokens are",
             "generated ones, over the whole job but for loading; beside them what the first plan predicted. The binding",
             "resource is the one that the plan names, with the share of the time in which it was busy (of the worker where",
             "that is most). Memory is the most of any worker's control group, page cache included, and its limit.", "",
             "| run | requests, tokens | tokens/s | predicted | off | binding | busy | loaded in | memory, GiB |",
             "|---|---|---|---|---|---|---|---|---|"]
    notes = []
    for case, entry in results.items():
        for name, run in runs_of(case, entry):
            measured, predicted = run["tokens_per_second"], run["predicted_tokens_per_second"]
            share = run.get("share of the binding resource") or max(run["busy"])  # of computing, in old ones
            most = max(run["memory"], key=lambda m: m["peak"] / m["limit"])
            lines.append(
                f"| {name} | {run.get('requests', '')} | {measured:.3g} | {predicted:.3g} | {100 * (predicted / measured - 1):+.0f} % | "
                f"{run['binding']} | {100 * share:.0f} % | {run['load_seconds']:.0f} s | "
                f"{most['peak'] / GIB:.2f} of {most['limit'] / GIB:.2f} |")
        notes += [f"- {case}: {key}: {value:.2f}" for key, value in entry.items()
                  if isinstance(value, float) and "plan" not in entry]
    with open(os.path.splitext(path)[0] + ".md", "w") as f:
        f.write("\n".join([*lines, "", *notes]) + "\n")


def main():
    cases = [*WHOLE, *SCALING, "stages/4", "slices/4", "unlike/3"]
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--bin", default=os.path.join(HERE, "..", "..", "build/release/bin"))
    parser.add_argument("--disk-dir", default="/var/tmp/sluice-bench")
    parser.add_argument("--disk-rate", type=float, default=900,
                        help="MB/s of the disk, which the machines share out")
    parser.add_argument("--cases", default=",".join(cases))
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--result", default=os.path.join(HERE, "results", "cluster.json"))
    args = parser.parse_args()
    unknown = set(args.cases.split(",")) - set(cases)
    if unknown:
        parser.error(f"no such case: {' '.join(sorted(unknown))}")
    os.makedirs(args.disk_dir, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as scratch:
        bench = Bench(args, scratch)
        for case in args.cases.split(","):
            kind = case.split("/")[0]
            run = {"scaling": bench.scaling, "stages": bench.stages, "slices": bench.slices,
                   "unlike": bench.unlike}
            run.get(kind, bench.whole)(case)
            if args.result:
                write_table(args.result)


if __name__ == "__main__":
    main()
