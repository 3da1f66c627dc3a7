#!/usr/bin/env python3
"""The planner beside reality: predictions, choices and adapting, on this machine.

    bench_planner.py [--bin build/release/bin] [--disk-dir DIR] [--cases predict,grid_memory,...]

  predict   policies and workloads of many kinds, predicted by `sluice plan` from this
            machine's profile, then run: throughput and binding resource
  formats   the same for weights in codes of checkpoints
  mixtures  the same for a mixture of experts: Qwen3-30B-A3B's width (hidden 2048, 128 experts
            of 768, 8 of them chosen), 2 of its 48 layers
  prefixes  the same for prompts that begin alike; prefixes:3 runs only the fourth
  grid_*    all in memory, weights on disk (_disk), more KV than memory (_kv): the planner's
            choice beside a grid of policies, all measured
  adapt     the disk throttled in the middle of a job (cgroup blkio, v1; needs root): the
            rate after the plan was made anew, beside a plan made for the slow disk
  balanced  two workers, one of which gets a third of its core (cgroups cpu and cpuset,
            v1; needs root): the balanced split beside the even one

Shape: that of a model of 1.1B, with 6 of its 22 layers: hidden 2048, 32 heads, 4 KV heads, MLP
5632, vocabulary 8192; random bfloat16 weights; 0.6 GB. Prints a table, and adds the case to
tests/bench/results/planner.json. Standard library only. Run it on a machine that does
nothing else, or name in --under what sees to that for the time of a profile or a run.
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

from bench_end_to_end import requests_file
from machine import machine, record_case
from small_machines import Cluster, SmallMachine

HERE = os.path.dirname(os.path.abspath(__file__))
SHAPE = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 2048,
         "num_hidden_layers": 6, "num_attention_heads": 32, "num_key_value_heads": 4,
         "intermediate_size": 5632, "vocab_size": 8192, "max_position_embeddings": 4096,
         "rms_norm_eps": 1e-5, "torch_dtype": "bfloat16", "hidden_act": "silu",
         "rope_theta": 10000.0, "tie_word_embeddings": False, "bos_token_id": 1,
         "eos_token_id": 2}
MIXTURE = {**SHAPE, "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe",
           "num_hidden_layers": 2, "head_dim": 128, "num_experts": 128, "num_experts_per_tok": 8,
           "moe_intermediate_size": 768, "norm_topk_prob": True, "decoder_sparse_step": 1,
           "mlp_only_layers": [], "rope_theta": 1000000.0}
MB = 1 << 20
RESOURCES = {"disk read": "disk_read", "disk write": "disk_write",
             "host to device": "h2d", "device to host": "d2h"}


class Bench:
    def __init__(self, args, scratch):
        self.machine = machine(args.bin, args.disk_dir)
        self.args = args
        self.scratch = scratch
        self.set_model()
        path = args.profile or os.path.join(scratch, "profile.json")
        if not args.profile:
            self.sluice("profile", "--disk-dir", args.disk_dir, "-o", path)
        with open(path) as f:
            self.profile = json.load(f)

    def set_model(self, shape=SHAPE, **codes):
        """What runs from now on: the shape, SHAPE with its weights in these codes."""
        self.model = os.path.join(self.scratch, "model")
        os.makedirs(self.model, exist_ok=True)
        kept = {}
        if codes:
            layers = [[codes["attention"]] * 4 + [codes["mlp"]] * 2 + [codes["down"]] + [""] * 3] * SHAPE["num_hidden_layers"]
            kept = {"kept_codes": {"layers": layers, "head": codes["head"], "embedding": ""}}
        with open(os.path.join(self.model, "config.json"), "w") as f:
            json.dump({**shape, **kept}, f)

    def sluice(self, *command, preexec=None):
        under = self.args.under.split() if command[0] in ("profile", "run") else []
        done = subprocess.run([*under, os.path.join(self.args.bin, "sluice"), *command],
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
        longest = max(p + n for p, n, *_ in lengths)
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

    def cluster(self, longest, workers, *flags):
        return Cluster(self.args.bin, self.scratch, self.model, workers, "--dtype", "bfloat16",
                       "--max-model-len", str(longest), *flags)

    def record(self, case, figures):
        record_case(self.args.result, case, figures, self.machine)

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
        self.compare("predict", cases)

    def formats(self):
        usual, long, ram = [(128, 32)] * 32, [(768, 24)] * 8, 4 << 30
        memory = "gbs=32 w=0/100/0 max-step-tokens=512"
        kinds = {"Q4_0": ("Q4_0", "Q4_0", "Q4_0", "Q8_0"), "Q8_0": ("Q8_0",) * 4,
                 "Q4_K_M": ("Q4_K", "Q4_K", "Q6_K", "Q6_K"), "MXFP4": ("MXFP4", "MXFP4", "MXFP4", "Q8_0"),
                 "FP8": ("E4M3_BF16_B128",) * 3 + ("",), "GPTQ": ("INT4_F16_G128",) * 3 + ("",)}
        cases = []
        for kind in kinds:
            cases.append((f"{kind}, in memory", usual, ram, memory, 1))
        cases += [("Q4_K_M, long", long, ram, memory, 1), ("Q4_0, few", usual[:8], ram, "gbs=8 w=0/100/0", 1),
                  ("Q4_K_M, on disk", usual, ram, "gbs=32 w=0/0/100 max-step-tokens=256", 1),
                  ("Q8_0, two micro-batches", usual, ram, "gbs=16 num-microbatches=2 w=0/100/0 max-step-tokens=256", 1)]
        self.compare("formats", cases, lambda case: self.set_model(
            **dict(zip(("attention", "mlp", "down", "head"), kinds[case.split(",")[0]]))))

    def mixtures(self):
        rng = random.Random(3)
        usual, short, long = [(64, 16)] * 128, [(16, 12)] * 256, [(512, 8)] * 16
        few, mixed = [(32, 16)] * 8, [(rng.randrange(8, 128), rng.randrange(4, 24)) for _ in range(128)]
        ram = 6 << 30
        cases = [(f"{name}, {place}", lengths, ram, f"gbs={gbs} w={share} max-step-tokens=1024", 1)
                 for name, lengths, gbs in (("usual", usual, 128), ("short", short, 256), ("few", few, 8))
                 for place, share in (("in memory", "0/100/0"), ("on disk", "0/0/100"))]
        cases += [
            ("long, in memory", long, ram, "gbs=16 w=0/100/0 max-step-tokens=2048", 1),
            ("mixed, half on disk", mixed, ram, "gbs=128 w=0/50/50 max-step-tokens=1024", 1),
            ("usual, two micro-batches, on disk", usual, ram,
             "gbs=64 num-microbatches=2 w=0/0/100 max-step-tokens=512", 1),
            ("usual, int4 in memory", usual, ram, "gbs=128 w=0/100/0 compress-weights=int4 max-step-tokens=1024", 1),
            ("usual, KV on disk", usual, ram, "gbs=128 w=0/100/0 c=0/0/100 max-step-tokens=1024", 1),
            ("usual, 2 workers", usual, ram, "gbs=64 w=0/100/0 max-step-tokens=512", 2)]
        self.compare("mixtures", cases, lambda case: self.set_model(MIXTURE))

    def prefixes(self, *only):
        rng = random.Random(3)
        system = [(288, 24, 0, 256)] * 48
        documents = [(544, 16, i // 8, 512) for i in range(48)]
        pairs = [(352, 24, i // 2, 320) for i in range(32)]
        mixed = [(128, 24) if i % 3 == 0 else (rng.randrange(270, 400), rng.randrange(4, 48), i // 12, 256)
                 for i in range(48)]
        ram, memory = 4 << 30, "gbs=32 w=0/100/0 max-step-tokens=512"
        cases = [("one beginning, in memory", system, ram, memory, 1),
                 ("documents, in memory", documents, ram, memory, 1),
                 ("documents, weights on disk", documents, ram, "gbs=32 w=0/0/100 max-step-tokens=256", 1),
                 ("pairs, in memory", pairs, ram, memory, 1),
                 ("mixed, in memory", mixed, ram, memory, 1),
                 ("documents, KV on disk", documents, ram, "gbs=32 w=0/100/0 c=0/0/100 max-step-tokens=512", 1),
                 ("documents, half of KV on disk", documents[:24], ram,
                  "gbs=24 w=0/100/0 c=0/50/50 max-step-tokens=512", 1),
                 ("one beginning, 2 workers", system, ram, "gbs=16 w=0/100/0 max-step-tokens=256", 2)]
        before = []
        if only and os.path.exists(self.args.result):
            with open(self.args.result) as f:
                before = json.load(f).get("prefixes", {"rows": []})["rows"]
        self.compare("prefixes", [cases[int(i)] for i in only] or cases, before=before)

    def compare(self, record, cases, prepare=lambda case: None, before=()):
        """Runs cases (name, lengths, memory, policy, workers), each beside its prediction; rows from before are kept."""
        names = [case[0] for case in cases]
        rows = [row for row in before if row["case"] not in names]
        for name, lengths, memory, policy, workers in cases:
            prepare(name)
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
        self.record(record, figures)

    def grid_memory(self):
        self.grid("grid_memory", [(128, 32)] * 48, 2 << 30, (
            ("gbs", (4, 8, 16, 32, 64)), ("num-microbatches", (1, 2)),
            ("max-step-tokens", (64, 128, 256, 512, 1024, 2048))))

    def grid_disk(self):
        self.grid("grid_disk", [(128, 32)] * 48, 330 * MB, (
            ("gbs", (8, 16, 32, 64)), ("num-microbatches", (1, 2)),
            ("max-step-tokens", (128, 256, 512, 1024)), ("w", ("", "0/0/100"))))

    def grid_kv(self):
        self.grid("grid_kv", [(512, 32)] * 24, 360 * MB, (
            ("gbs", (8, 16, 24, 32)), ("num-microbatches", (1, 2, 3)),
            ("max-step-tokens", (256, 512, 1024)), ("w c", ("", "0/0/100 0/0/100"))))

    def grid(self, case, lengths, memory, knobs):
        """The planner's choice beside all combinations of the knobs' values."""
        flags = ("--plan", "on", "--profile", self.profile_file(memory))
        chosen = self.run_one(lengths, memory, "", 1, *flags)
        rates = {}
        for values in itertools.product(*(v for _, v in knobs)):
            policy = {}
            for (names, _), value in zip(knobs, values):
                policy.update(zip(names.split(), str(value).split()))
            if int(policy["max-step-tokens"]) < int(policy["gbs"]):
                continue  # each sequence of a block has a row in each step
            text = " ".join(f"{k}={v}" for k, v in policy.items())
            try:
                rates[text] = [self.rate(lengths, memory, text)]
            except SystemExit as error:
                assert "memory" in str(error), error  # it does not fit
        measured = len(rates)
        # The best of many noisy figures is too good, so the first ones are measured again, in turn
        # with the choice, and medians of all are compared.
        first = sorted(rates, key=lambda k: -rates[k][0])[:4]
        plan = []
        for _ in range(5):
            plan.append(self.rate(lengths, memory, "", *flags))
            for policy in first:
                rates[policy].append(self.rate(lengths, memory, policy))
        rate = statistics.median(plan)
        best = max(first, key=lambda k: statistics.median(rates[k]))
        most = statistics.median(rates[best])
        print(f"{case:20} planned {rate:8.1f}, best of {measured} {most:8.1f} ({best}): "
              f"{100 * rate / most:.1f} %", flush=True)
        self.record(case, {
            "chosen": chosen["policy"]["asked"], "plan": chosen["plan"],
            "chosen_tokens_per_second": rate, "chosen_rates": plan, "policies": measured,
            "best": best, "best_tokens_per_second": most, "best_rates": rates[best],
            "share_of_best": rate / most, "rates": {k: r[0] for k, r in rates.items()}})

    def rate(self, lengths, memory, policy, *flags):
        run = self.run_one(lengths, memory, policy, 1, *flags)
        return run["generation_tokens"] / run["wall_seconds"]

    def adapt(self):
        # Weights and KV cache do not fit together: on a good disk KV goes there, and on one that
        # hardly takes writes it had better not.
        lengths, memory, slow = [(64, 64)] * 512, 230 * MB, (1000e6, 40e6)
        rows = sum(prompt + new for prompt, new in lengths)
        longest = max(prompt + new for prompt, new in lengths)
        throttle_at, least_after, until = 0.15 * rows, 0.05 * rows, 0.9 * rows

        def job(profile, throttle_first):
            """Times (s), rows computed and number of the plan; answers; the last plan."""
            with SmallMachine("disk", disk=(0, 0)) as group:
                if throttle_first:
                    group.throttle(*slow, self.args.disk_dir)
                flags = ["--host-memory", str(memory), "--disk-dir", self.args.disk_dir,
                         "--disk-space", "16GiB"]
                with self.cluster(longest, [("worker", [*flags, "--profile", profile], group)]) as cluster:
                    id = cluster.submit(requests_file(self.scratch, lengths))
                    seen, throttled = [], throttle_first
                    start = time.time()
                    while cluster.status(id)["status"] == "in_progress":
                        done = cluster.metric(0, "sluice_worker_tokens_total")
                        seen.append((time.time() - start, done,
                                     cluster.metric(-1, "sluice_plan_epoch")))
                        if not throttled and done >= throttle_at:
                            group.throttle(*slow, self.args.disk_dir)
                            throttled = True
                            print(f"  throttled at {seen[-1][0]:.1f} s", flush=True)
                        time.sleep(0.2)
                    return seen, cluster.answers(id), cluster.status(id)["plan"]

        def rate(seen, first):
            """Rows a second from so many rows on, but for the job's end."""
            a = next(s for s in seen if s[1] >= first)
            b = next(s for s in seen if s[1] >= until)
            return (b[1] - a[1]) / (b[0] - a[0])
        seen, answers, plan = job(self.profile_file(memory), False)
        slow_profile = self.profile_file(memory, read_bytes_per_second=slow[0],
                                         write_bytes_per_second=slow[1])
        slow_seen, slow_answers, slow_plan = job(slow_profile, True)
        assert answers == slow_answers
        epochs = sorted({s[2] for s in seen})
        if len(epochs) < 2:
            sys.exit("the plan stayed as it was")
        changed = next(s for s in seen if s[2] == epochs[-1])
        throttled = next(s for s in seen if s[1] >= throttle_at)
        first = changed[1] + least_after
        before = [s for s in seen if throttled[0] + 1 < s[0] < changed[0]]
        figures = {
            "plans": len(epochs), "new plan after the disk got slow, s": changed[0] - throttled[0],
            "rows a second, before": throttled[1] / throttled[0],
            "rows a second, slow disk, old plan":
            (before[-1][1] - before[0][1]) / (before[-1][0] - before[0][0]),
            "rows a second, new plan": rate(seen, first),
            "rows a second, plan for the slow disk": rate(slow_seen, first),
            "share": rate(seen, first) / rate(slow_seen, first), "same_tokens": True,
            "plan at the end": plan, "plan for the slow disk": slow_plan}
        print({k: v for k, v in figures.items() if not k.startswith("plan ")})
        self.record("adapt", figures)

    def balanced(self):
        """Two workers of one core each, one of them allowed a third of its core."""
        lengths = [(64, 32)] * 256
        with SmallMachine("fast", cores=0) as fast, \
                SmallMachine("slow", cores=1, share=1 / 3) as slow:
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
        longest = max(p + n for p, n in lengths)
        flags = ["--threads", "1", "--host-memory", "2GiB", "--profile"]
        workers = [(group.name, [*flags, profile], group) for group, profile in workers]
        with self.cluster(longest, workers, "--split", split, "--replicas", "1") as cluster:
            job = cluster.submit(requests_file(self.scratch, lengths))
            now = cluster.status(job)
            while now["generation_tokens_per_second"] == 0:
                time.sleep(0.05)
                now = cluster.status(job)
            begin = time.time()
            while now["status"] == "in_progress":
                time.sleep(0.05)
                now = cluster.status(job)
            seconds = time.time() - begin
            assert now["request_counts"]["completed"] == len(lengths), now
            return (now["generation_tokens"] / seconds,
                    [s["layers"] for s in now["plan"]["stages"]], cluster.answers(job))


def main():
    cases = ("predict", "formats", "mixtures", "prefixes", "grid_memory", "grid_disk", "grid_kv", "adapt", "balanced")
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--bin", default=os.path.join(HERE, "..", "..", "build/release/bin"))
    parser.add_argument("--disk-dir", default="/var/tmp/sluice-bench")
    parser.add_argument("--profile", help="measured just before by sluice profile; default: it is measured first")
    parser.add_argument("--cases", default=",".join(cases))
    parser.add_argument("--under", default="", help="a command that runs what is behind it")
    parser.add_argument("--result", default=os.path.join(HERE, "results", "planner.json"))
    args = parser.parse_args()
    unknown = {case.split(":")[0] for case in args.cases.split(",")} - set(cases)
    if unknown:
        parser.error(f"no such case: {' '.join(sorted(unknown))}")
    os.makedirs(args.disk_dir, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as scratch:
        bench = Bench(args, scratch)
        for case in args.cases.split(","):
            name, *only = case.split(":")
            getattr(bench, name)(*only)


if __name__ == "__main__":
    main()
