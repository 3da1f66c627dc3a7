#!/usr/bin/env python3
"""The planner beside reality: predictions, choices and adapting, on this machine.

    bench_planner.py [--bin build/release/bin] [--disk-dir DIR] [--cases predict,grid,...]

  predict   policies and workloads of many kinds, predicted by `sluice plan` from this
            machine's profile, then run: throughput and binding resource
  grid      in three regimes (all in memory, weights on disk, more KV than memory): the
            planner's choice beside a grid of policies, all measured
  adapt     the disk throttled in the middle of a job (cgroup blkio, v1; needs root): the
            rate after the plan was made anew, beside a plan made for the slow disk
  balanced  two workers, one of which gets a third of its core (cgroups cpu and cpuset,
            v1; needs root): the balanced split beside the even one

Shape: that of a model of 1.1B, with 6 of its 22 layers: hidden 2048, 32 heads, 4 KV heads, MLP
5632, vocabulary 8192; random bfloat16 weights; 0.6 GB. Prints a table, and adds the case to
tests/bench/results/planner.json. Standard library only. Run it on a machine that does
nothing else.
"""

import argparse
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time

from bench_end_to_end import record_case, requests_file

HERE = os.path.dirname(os.path.abspath(__file__))
SHAPE = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 2048,
         "num_hidden_layers": 6, "num_attention_heads": 32, "num_key_value_heads": 4,
         "intermediate_size": 5632, "vocab_size": 8192, "max_position_embeddings": 4096,
         "rms_norm_eps": 1e-5, "torch_dtype": "bfloat16", "hidden_act": "silu",
         "rope_theta": 10000.0, "tie_word_embeddings": False, "bos_token_id": 1,
         "eos_token_id": 2}
MB = 1 << 20
RESOURCES = {"disk read": "disk_read", "disk write": "disk_write",
             "host to device": "h2d", "device to host": "d2h"}


class Bench:
    def __init__(self, args, scratch):
        self.args = args
        self.scratch = scratch
        self.model = os.path.join(scratch, "model")
        os.mkdir(self.model)
        with open(os.path.join(self.model, "config.json"), "w") as f:
            json.dump(SHAPE, f)
        path = os.path.join(scratch, "profile.json")
        self.sluice("profile", "--disk-dir", args.disk_dir, "-o", path)
        with open(path) as f:
            self.profile = json.load(f)

    def sluice(self, *command, preexec=None):
        done = subprocess.run([os.path.join(self.args.bin, "sluice"), *command],
                              capture_output=True, text=True, preexec_fn=preexec)
        if done.returncode != 0:
            sys.exit(f"sluice {' '.join(command)} ended with {done.returncode}:\n{done.stderr}")
        return done.stdout

    def profile_file(self, memory, **disk):
        """This machine's profile, with another memory budget or disk."""
        profile = json.loads(json.dumps(self.profile))
        profile["host_memory_bytes"] = memory
        profile["disk"].update(disk)
        path = os.path.join(self.scratch, "profile-used.json")
        with open(path, "w") as f:
            json.dump(profile, f)
        return path

    def common(self, lengths, workers):
        longest = max(p + n for p, n in lengths)
        return ["--model", self.model, "-i", requests_file(self.scratch, lengths), "--dtype", "bfloat16",
                "--max-model-len", str(longest), "--workers", str(workers)]

    def predict_one(self, lengths, memory, policy, workers):
        out = self.sluice("plan", *self.common(lengths, workers), "--json", "--profile",
                          self.profile_file(memory), "--policy", policy)
        return json.loads(out)["plan"]

    def run_one(self, lengths, memory, policy, workers, *flags, preexec=None):
        policy = ["--policy", policy] if policy else []
        out = self.sluice("run", *self.common(lengths, workers), "--load-format", "dummy", "-o",
                          os.devnull, "--json", "-q", "--host-memory", str(memory), "--disk-dir",
                          self.args.disk_dir, "--disk-space", "16GiB", *policy, *flags,
                          preexec=preexec)
        run = json.loads(out.splitlines()[-1])
        assert run["completed"] == len(lengths), run
        return run

    def record(self, case, figures):
        record_case(self.args.result, case, figures)

    @staticmethod
    def busy(run, workers):
        """Measured seconds of each resource; compute of several workers shares the cores."""
        busy = {name: run["wire_seconds"][key] for name, key in RESOURCES.items()}
        busy["compute"] = sum(run["compute_seconds"].values()) / workers
        return busy

    def predict(self):
        rng = random.Random(3)
        short = [(64, 64)] * 96
        usual = [(128, 32)] * 96
        long = [(768, 24)] * 24
        talk = [(32, 192)] * 64
        mixed = [(rng.randrange(16, 400), rng.randrange(4, 96)) for _ in range(96)]
        ram = 4 << 30
        cases = []
        for name, lengths in (("short", short), ("usual", usual), ("long", long),
                              ("talk", talk), ("mixed", mixed)):
            cases.append((f"{name}, in memory", lengths, ram,
                          "gbs=64 w=0/100/0 max-step-tokens=512", 1))
            cases.append((f"{name}, weights on disk", lengths, ram,
                          "gbs=32 num-microbatches=2 w=0/0/100 max-step-tokens=256", 1))
        for name, lengths in (("usual", usual), ("mixed", mixed)):
            for share in (30, 70):
                cases.append((f"{name}, {share} % on disk", lengths, ram,
                              f"gbs=32 w=0/{100 - share}/{share} max-step-tokens=256", 1))
            cases.append((f"{name}, few sequences, on disk", lengths[:48], ram,
                          "gbs=8 w=0/0/100 max-step-tokens=128", 1))
            cases.append((f"{name}, int4 from disk", lengths, ram,
                          "gbs=32 w=0/0/100 compress-weights=int4 max-step-tokens=256", 1))
            cases.append((f"{name}, int4 in memory", lengths, ram,
                          "gbs=32 w=0/100/0 compress-weights=int4 max-step-tokens=256", 1))
            cases.append((f"{name}, KV on disk", lengths, ram,
                          "gbs=32 w=0/100/0 c=0/0/100 max-step-tokens=512", 1))
        cases.append(("long, KV on disk", long, ram,
                      "gbs=24 w=0/100/0 c=0/0/100 max-step-tokens=1024", 1))
        cases.append(("long, half of KV on disk", long, ram,
                      "gbs=24 w=0/100/0 c=0/50/50 max-step-tokens=1024", 1))
        for workers in (2, 3):
            cases.append((f"usual, {workers} workers", usual, ram,
                          "gbs=32 w=0/100/0 max-step-tokens=256", workers))
            cases.append((f"mixed, {workers} workers, on disk", mixed, ram,
                          "gbs=32 w=0/0/100 max-step-tokens=256", workers))
        rows = []
        for name, lengths, memory, policy, workers in cases:
            plan = self.predict_one(lengths, memory, policy, workers)
            run = self.run_one(lengths, memory, policy, workers)
            predicted = plan["predicted"]["tokens_per_second"]
            measured = run["generation_tokens"] / run["wall_seconds"]
            busy = self.busy(run, workers)
            binding = max(busy, key=busy.get)
            rows.append({"case": name, "policy": policy, "workers": workers,
                         "predicted_tokens_per_second": predicted,
                         "measured_tokens_per_second": measured,
                         "error": predicted / measured - 1,
                         "binding_predicted": plan["predicted"]["binding"],
                         "binding_measured": binding, "busy_seconds": busy,
                         "predicted_busy_seconds": plan["stages"][0]["predicted"],
                         "wall_seconds": run["wall_seconds"]})
            r = rows[-1]
            print(f"{name:34} {predicted:9.1f} {measured:9.1f} {100 * r['error']:7.1f} %  "
                  f"{r['binding_predicted']:15} {binding:15}", flush=True)
        errors = [abs(r["error"]) for r in rows]
        figures = {"runs": len(rows), "median_error": statistics.median(errors),
                   "worst_error": max(errors),
                   "binding_right": sum(r["binding_predicted"] == r["binding_measured"]
                                        for r in rows) / len(rows), "rows": rows}
        print({k: v for k, v in figures.items() if k != "rows"})
        self.record("predict", figures)

    def grid(self):
        figures = {}
        usual = [(128, 32)] * 96
        long = [(512, 32)] * 48
        for regime, lengths, memory in (("in memory", usual, 2 << 30),
                                        ("weights on disk", usual, 300 * MB),
                                        ("more KV than memory", long, 360 * MB)):
            chosen = self.run_one(lengths, memory, "", 1, "--plan", "on", "--profile",
                                  self.profile_file(memory))
            rate = chosen["generation_tokens"] / chosen["wall_seconds"]
            measured = []
            for gbs, nm, step in itertools.product((4, 8, 16, 32, 64), (1, 2, 4),
                                                   (128, 256, 512, 1024)):
                if step < gbs:
                    continue
                policy = f"gbs={gbs} num-microbatches={nm} max-step-tokens={step}"
                try:
                    run = self.run_one(lengths, memory, policy, 1)
                except SystemExit:
                    continue  # does not fit
                measured.append((run["generation_tokens"] / run["wall_seconds"], policy))
            best = max(measured)
            figures[regime] = {"chosen": chosen["policy"]["asked"], "plan": chosen["plan"],
                               "chosen_tokens_per_second": rate, "policies": len(measured),
                               "best": best[1], "best_tokens_per_second": best[0],
                               "share_of_best": rate / best[0]}
            print(f"{regime:20} planned {rate:8.1f}, best of {len(measured)} {best[0]:8.1f} "
                  f"({best[1]}): {100 * rate / best[0]:.1f} %", flush=True)
        self.record("grid", figures)


    def watched(self, lengths, memory, profile, *flags, group=None, throttle_at=None,
                rate=None):
        """Runs a planned job; gives when results came, and when plans were made, in seconds."""
        out = os.path.join(self.scratch, "watched.jsonl")
        log = os.path.join(self.scratch, "watched.log")
        command = [os.path.join(self.args.bin, "sluice"), "--log-level", "info", "run",
                   *self.common(lengths, 1), "--load-format", "dummy", "-o", out, "--json", "-q",
                   "--host-memory", str(memory), "--disk-dir", self.args.disk_dir,
                   "--disk-space", "16GiB", "--plan", "on", "--profile", profile, *flags]
        with open(log, "w") as f:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=f, text=True,
                                       preexec_fn=group.enter if group else None)
        start, times, lines, plans = time.time(), [], 0, []
        while process.poll() is None:
            time.sleep(0.1)
            now = time.time() - start
            if throttle_at is not None and lines >= throttle_at:
                group.throttle(rate)
                throttle_at = None
                print(f"  throttled at {now:.1f} s, after {lines} results", flush=True)
            if os.path.exists(out):
                with open(out, "rb") as f:
                    n = f.read().count(b"\n")
                times += [now] * (n - lines)
                lines = n
            with open(log) as f:
                made = f.read().count("plan ready")
            while len(plans) < made:
                plans.append(now)
        if process.returncode != 0:
            with open(log) as f:
                sys.exit(f"{' '.join(command)} ended with {process.returncode}:\n{f.read()}")
        run = json.loads(process.stdout.read().splitlines()[-1])
        with open(out) as f:
            answers = [json.loads(line)["response"]["body"]["choices"] for line in f]
        return run, times, plans, answers

    def adapt(self):
        # Few sequences fit beside the weights; what the disk has to bring must be shared by
        # more of them when it is slow.
        lengths, memory, slow = [(64, 64)] * 1024, 230 * MB, 250e6
        fast = self.profile_file(memory)
        with Blkio(self.args.disk_dir) as group:
            run, times, plans, answers = self.watched(
                lengths, memory, fast, group=group, throttle_at=200, rate=slow)
        with Blkio(self.args.disk_dir) as group:
            group.throttle(slow)
            made_for, slow_times, _, slow_answers = self.watched(
                lengths, memory, self.profile_file(memory, read_bytes_per_second=slow,
                                                   write_bytes_per_second=slow),
                group=group)
        assert answers == slow_answers

        def rate(when):
            """Results a second in the middle of a list of times."""
            a, b = len(when) // 8, len(when) * 7 // 8
            return (b - a) / (when[b] - when[a])
        after = [t for t in times if t > plans[-1] + 2]
        figures = {"plans": len(plans), "plan made after, s": plans[-1],
                   "results a second, after": rate(after),
                   "results a second, plan for the slow disk": rate(slow_times),
                   "share": rate(after) / rate(slow_times), "same_tokens": True,
                   "plan at the end": run["plan"], "plan for the slow disk": made_for["plan"]}
        print({k: v for k, v in figures.items() if not k.startswith("plan ")})
        self.record("adapt", figures)


    def balanced(self):
        """Two workers of one core each, one of them allowed a third of its core."""
        lengths = [(64, 32)] * 256
        with Cpu("fast", 0, 1.0) as fast, Cpu("slow", 1, 1 / 3) as slow:
            profiles = {}
            for group in (fast, slow):
                path = os.path.join(self.scratch, f"{group.name}.json")
                self.sluice("profile", "--threads", "1", "--host-memory", "2GiB", "-o", path,
                            preexec=group.enter)
                with open(path) as f:
                    profile = json.load(f)
                profile["machine"] = group.name  # they share nothing
                with open(path, "w") as f:
                    json.dump(profile, f)
                profiles[group.name] = path
            rates, layers, answers = {}, {}, {}
            for split in ("even", "balanced"):
                rates[split], layers[split], answers[split] = self.run_cluster(
                    split, lengths, [(fast, profiles["fast"]), (slow, profiles["slow"])])
                print(f"{split:10} {rates[split]:8.1f} tokens/s, layers {layers[split]}",
                      flush=True)
        assert answers["even"] == answers["balanced"]
        figures = {"rates": rates, "layers": layers,
                   "balanced over even": rates["balanced"] / rates["even"]}
        print(f"balanced over even: {figures['balanced over even']:.2f}")
        self.record("balanced", figures)

    def run_cluster(self, split, lengths, workers):
        state = tempfile.mkdtemp(dir=self.scratch)
        longest = max(p + n for p, n in lengths)
        started = []

        def start(command, preexec=None):
            log = open(os.path.join(state, f"log-{len(started)}"), "w")
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True,
                                       preexec_fn=preexec)
            started.append(process)
            line = process.stdout.readline()
            if not line:
                sys.exit(f"{' '.join(command)} did not start: see {log.name}")
            return line
        try:
            line = start([os.path.join(self.args.bin, "sluice-coordinator"), "--model",
                          self.model, "--state-dir", os.path.join(state, "state"), "--port",
                          "0", "--metrics-port", "0", "--min-workers", "2", "--dtype",
                          "bfloat16", "--load-format", "dummy", "--split", split,
                          "--max-model-len", str(longest)])
            address = line.split()[2].rstrip(",")
            for group, profile in workers:
                start([os.path.join(self.args.bin, "sluice-worker"), "--model", self.model,
                       "--coordinator", address, "--name", group.name, "--threads", "1",
                       "--host-memory", "2GiB", "--load-format", "dummy", "--metrics-port", "0",
                       "--profile", profile], group.enter)
            job = json.loads(self.sluice("--coordinator", address, "submit", "-i",
                                         requests_file(self.scratch, lengths), "--json"))["id"]

            def status():
                return json.loads(self.sluice("--coordinator", address, "status", job, "--json"))
            now = status()
            while now["generation_tokens_per_second"] == 0:
                time.sleep(0.05)
                now = status()
            begin = time.time()
            while now["status"] == "in_progress":
                time.sleep(0.05)
                now = status()
            seconds = time.time() - begin
            assert now["request_counts"]["completed"] == len(lengths), now
            answers = [json.loads(line)["response"]["body"]["choices"] for line in self.sluice(
                "--coordinator", address, "results", job).splitlines()]
            return (now["generation_tokens"] / seconds,
                    [s["layers"] for s in now["plan"]["stages"]], answers)
        finally:
            for process in reversed(started):
                process.terminate()
                process.wait()


class Cpu:
    """A group of our own on one core, which gets a share of its time (cgroups v1)."""

    def __init__(self, name, core, share):
        self.name, self.core, self.share = name, core, share

    def __enter__(self):
        self.paths = {kind: f"/sys/fs/cgroup/{kind}/sluice-bench-{os.getpid()}-{self.name}"
                      for kind in ("cpu", "cpuset")}
        for path in self.paths.values():
            os.mkdir(path)
        self.write("cpuset", "cpuset.cpus", self.core)
        self.write("cpuset", "cpuset.mems", 0)
        if self.share < 1:
            # In shorter periods the kernel's tick lets it have more than that.
            self.write("cpu", "cpu.cfs_period_us", 100000)
            self.write("cpu", "cpu.cfs_quota_us", int(100000 * self.share))
        return self

    def write(self, kind, name, value):
        with open(os.path.join(self.paths[kind], name), "w") as f:
            f.write(str(value))

    def enter(self):
        for kind in self.paths:
            self.write(kind, "cgroup.procs", os.getpid())

    def __exit__(self, *_):
        for path in self.paths.values():
            for _ in range(50):
                try:
                    os.rmdir(path)
                    break
                except OSError:
                    time.sleep(0.1)


class Blkio:
    """A group of our own whose reads and writes of one disk can be throttled."""

    def __init__(self, path):
        dev = os.stat(path).st_dev
        sys_path = os.path.realpath(f"/sys/dev/block/{os.major(dev)}:{os.minor(dev)}")
        if os.path.exists(os.path.join(sys_path, "partition")):
            sys_path = os.path.dirname(sys_path)
        with open(os.path.join(sys_path, "dev")) as f:
            self.device = f.read().strip()

    def __enter__(self):
        self.path = f"/sys/fs/cgroup/blkio/sluice-bench-{os.getpid()}"
        os.mkdir(self.path)
        return self

    def enter(self):
        with open(os.path.join(self.path, "cgroup.procs"), "w") as f:
            f.write(str(os.getpid()))

    def throttle(self, rate):
        for kind in ("read", "write"):
            with open(os.path.join(self.path, f"blkio.throttle.{kind}_bps_device"), "w") as f:
                f.write(f"{self.device} {int(rate)}")

    def __exit__(self, *_):
        for _ in range(50):
            try:
                os.rmdir(self.path)
                return
            except OSError:
                time.sleep(0.1)


def main():
    cases = ("predict", "grid", "adapt", "balanced")
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--bin", default=os.path.join(HERE, "..", "..", "build/release/bin"))
    parser.add_argument("--disk-dir", default="/var/tmp/sluice-bench")
    parser.add_argument("--cases", default=",".join(cases))
    parser.add_argument("--result", default=os.path.join(HERE, "results", "planner.json"))
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
