"""Plans: made by the command and by a coordinator, carried out, and refused where
they make no sense. The same tokens, whatever the plan."""

import functools
import gzip
import json
import os
import sys
import tempfile
import urllib.request

import harness

LLAMA = os.path.join(harness.MODELS, "llama-kjv")
FP32 = ("--dtype", "float32")
# The profile is written by hand, so that nothing is measured; a small machine might have it.
PROFILE = {
    "version": 1, "name": "small", "host_memory_bytes": 512 << 20, "disk_bytes": 1 << 30,
    "threads": 2,
    "host": {
        "memory_bytes_per_second": 2e10,
        "products": [{"dtype": "float32", "weights": "none",
                      "flops_by_rows": [[1, 5e9], [64, 2e11], [512, 3e11]]}],
        "attention": [{"format": "float32", "decode_bytes_by_context": 1e10,
                       "prefill_flops_by_context": 1e11}],
        "quantize_bytes_per_second": 1e9, "dequantize_bytes_per_second": 5e9,
        "layer_seconds": 5e-5, "row_element_seconds": 1e-9, "logit_seconds": 2e-10,
        "share_by_threads": [[1, 0.55], [2, 1]]},
    "disk": {"read_bytes_per_second": 2e9, "write_bytes_per_second": 1e9, "direct": True},
    "step_seconds": 5e-4}


class Files:
    """A directory with a profile and requests."""

    def __enter__(self):
        self.directory = tempfile.TemporaryDirectory(prefix="sluice-plan-")
        self.lines = harness.mixed_requests(24)
        self.input = self.path("in.jsonl")
        harness.write_lines(self.input, self.lines)
        self.profile = self.write("profile.json", PROFILE)
        return self

    def __exit__(self, *_):
        self.directory.cleanup()

    def path(self, name):
        return os.path.join(self.directory.name, name)

    def write(self, name, value):
        with open(self.path(name), "w") as f:
            f.write(value if isinstance(value, str) else json.dumps(value))
        return self.path(name)


@functools.lru_cache
def answers_without_plan():
    return harness.answers(harness.run(LLAMA, harness.mixed_requests(24), *FP32)[1])


def plan(files, *flags, check=True):
    return harness.sluice("plan", "--model", LLAMA, *FP32, "-i", files.input, *flags,
                          check=check)


def check_command(files, base):
    out = files.path("plan.json")
    text = plan(files, "--profile", files.profile, "-o", out).stdout
    assert "<- binding" in text and "tokens/s" in text, text
    # run takes what the command writes as it is, and computes the same.
    figures, results = harness.run(LLAMA, files.lines, *FP32, "--policy", f"@{out}",
                                   "--max-model-len", "512")
    assert harness.answers(results) == base
    with open(out) as f:
        written = json.load(f)
    assert figures["plan"]["stages"][0]["policy"] == written["stages"][0]["policy"], figures
    predicted = figures["predicted"]["resources"]["compute"]
    assert predicted["predicted_seconds"] > 0 and predicted["measured_seconds"] > 0, figures
    # The command gives the same JSON twice.
    again = [json.loads(plan(files, "--profile", files.profile, "--json").stdout)
             for _ in range(2)]
    assert again[0] == again[1] and again[0]["plan"]["stages"] == written["stages"]
    # A policy that is given is predicted.
    given = json.loads(plan(files, "--profile", files.profile, "--json", "--policy",
                            "gbs=3 w=0/40/60").stdout)["plan"]
    assert "gbs=3 " in given["stages"][0]["policy"]
    assert given["predicted"]["bytes_per_token"]["disk read"] > 0
    # One of two machines is three times slower; the plan is balanced, and the job simulated.
    slow = json.loads(json.dumps(PROFILE))
    for product in slow["host"]["products"]:
        product["flops_by_rows"] = [[x, r / 3] for x, r in product["flops_by_rows"]]
    files.write("slow.json", slow)
    cluster = files.write("cluster.json", {"machines": [
        {"profile": "profile.json"}, {"profile": "slow.json", "count": 1}]})
    two = json.loads(plan(files, "--cluster", cluster, "--split", "balanced",
                          "--json").stdout)["plan"]
    sizes = [s["layers"][1] - s["layers"][0] for s in two["stages"]]
    assert sizes[0] > sizes[-1] or len(sizes) == 1, two
    simulated = json.loads(harness.sluice(
        "simulate", "--model", LLAMA, *FP32, "--lengths", "64:16:200", "--cluster", cluster,
        "--json").stdout)
    off = simulated["tokens_per_second"] / simulated["predicted_tokens_per_second"]
    assert 0.8 < off < 1.25, simulated
    picture = files.path("frontier.svg")
    frontier = plan(files, "--profile", files.profile, "--frontier", "--svg", picture).stdout
    assert len(frontier.splitlines()) >= 2, frontier
    with open(picture) as f:
        assert f.read().startswith("<svg")


def check_bad_input(files):
    def refused(*flags):
        done = plan(files, *flags, check=False)
        assert done.returncode in (1, 2), (flags, done)
        lines = done.stderr.strip().splitlines()
        assert len(lines) == 1, done.stderr
        return lines[0]

    bad = json.loads(json.dumps(PROFILE))
    bad["disk"]["read_bytes_per_second"] = 0
    error = refused("--profile", files.write("zero.json", bad))
    assert "zero.json" in error and "disk.read_bytes_per_second" in error, error
    error = refused("--profile", files.write("nan.json", '{"version": 1, "threads": NaN}'))
    assert "nan.json" in error, error
    assert "nowhere.json" in refused("--profile", files.path("nowhere.json"))
    assert "machines[0].profile" in refused(
        "--cluster", files.write("bad-cluster.json", {"machines": [{"count": 2}]}))
    small = json.loads(json.dumps(PROFILE))
    small["host_memory_bytes"] = 1 << 20
    small["disk_bytes"] = 0
    error = refused("--profile", files.write("tiny.json", small))
    assert "host memory" in error, error
    done = harness.sluice("plan", "--model", LLAMA, "--lengths", "0:1:1", "--profile",
                          files.profile, check=False)
    assert done.returncode == 2 and "PROMPT:GENERATED:REQUESTS" in done.stderr, done
    done = harness.sluice("plan", "--model", LLAMA, "--lengths", "999999:1:1", "--profile",
                          files.profile, check=False)
    assert done.returncode == 2 and "1000000 positions" in done.stderr, done
    assert "once" in refused("--profile", files.profile, "--running")
    # What would have no effect is not taken silently.
    local = ("--profile", files.profile)
    cluster = files.write("cluster.json", {"machines": [{"profile": files.profile}]})
    plan_file = files.write("named-plan.json", {"version": 1, "num_blocks": 1, "kv_positions": 512, "stages": [
        {"layers": [0, 6], "policy": "gbs=1 w=0/100/0 c=0/100/0 h=0/100/0"}]})
    for flags, why in [
            (("--cluster", cluster, "--workers", "2"), '"workers" says it'),
            ((*local, "--replicas", "auto", "--policy", "w=0/100/0"), "--replicas and shares"),
            ((*local, "--frontier", "--output", files.path("frontier.json")), "leave --output out"),
            (("--replicas", "9"), "--replicas 9 needs as many workers"),
            ((*local, "--policy", "schedule=row"), "--policy: plans are made for schedule=zigzag"),
            ((*local, "--policy", "packing=off sparsity=0.1"), "packing=on"),
            ((*local, "--policy", f"@{plan_file}"), "sluice simulate --plan")]:
        assert why in refused(*flags), flags
    done = harness.sluice("simulate", "--model", LLAMA, "--lengths", "64:16:10", *local, "--replicas", "2", check=False)
    assert done.returncode == 2 and "--replicas: one pipeline is simulated" in done.stderr, done
    done = plan(files, "--profile", files.profile, "--workers", "-2", check=False)
    assert done.returncode == 2 and "--workers" in done.stderr, done
    done = harness.sluice("plan", "--model", LLAMA, "--profile", files.profile, check=False)
    assert done.returncode == 2 and "--lengths" in done.stderr, done
    empty = files.write("empty.jsonl", "")
    done = harness.sluice("plan", "--model", LLAMA, "-i", empty, "--profile", files.profile,
                          check=False)
    assert done.returncode != 0 and "no requests" in done.stderr, done
    wrong = files.write("wrong-plan.json", {"version": 1, "num_blocks": 1, "stages": [
        {"layers": [0, 999], "policy": "gbs=2"}]})
    done = harness.sluice("run", "--model", LLAMA, "-i", files.input, "-o", os.devnull,
                          "--policy", f"@{wrong}", check=False)
    assert done.returncode == 2 and "999 layers" in done.stderr, done


def check_local(files, base):
    figures, results = harness.run(LLAMA, files.lines, *FP32, "--plan", "on", "--profile",
                                   files.profile, "--max-model-len", "512")
    assert harness.answers(results) == base
    assert figures["plan"]["stages"][0]["worker"] == "local-0", figures
    assert f"gbs={figures['gbs']} " in figures["policy"]["asked"], figures


def scrape(cluster):
    return urllib.request.urlopen(cluster.metrics_url).read().decode()


def check_cluster(files, base):
    worker_flags = ("--profile", files.profile)
    with harness.Cluster(LLAMA, workers=2, coordinator_flags=[*FP32, "--replicas", "1"],
                         worker_flags=worker_flags) as cluster:
        state = json.loads(cluster.sluice("cluster", "--json").stdout)
        assert state["plan"] is None, state  # there is no job yet
        job = cluster.submit(files.input)["id"]
        status = cluster.wait_for_end(job)
        assert status["request_counts"]["completed"] == len(files.lines), status
        assert harness.answers(cluster.results(job)) == base
        # The plan is recorded with the job, and shown with the cluster and in the metrics.
        assert [s["worker"] for s in status["plan"]["stages"]] == ["worker-0", "worker-1"]
        assert "expected" in cluster.sluice("status", job).stdout
        state = json.loads(cluster.sluice("cluster", "--json").stdout)
        assert state["plan"]["stages"] == status["plan"]["stages"]
        # Before the plan was made, the workers measured their links.
        for worker, peer in (("worker-0", "worker-1"), ("worker-1", "worker-0")):
            profile = next(w["profile"] for w in state["workers"] if w["name"] == worker)
            link = next(x for x in profile["links"] if x["peer"] == peer)
            assert link["bytes_per_second"] > 0 and link["latency_seconds"] > 0, profile
        # Gauges are set at intervals: the job may be over before the first.
        harness.wait_for(lambda: "sluice_plan_predicted_seconds{" in scrape(cluster),
                         "the plan's seconds in the metrics")
        # A later job runs by the plan that is there, which is recorded with it.
        second = cluster.submit(files.input)["id"]
        assert cluster.wait_for_end(second)["plan"] is not None
        # The command makes a plan for the cluster that runs.
        done = cluster.sluice("plan", "--model", LLAMA, *FP32, "-i", files.input, "--running",
                              "--json")
        assert len(json.loads(done.stdout)["plan"]["stages"]) == 2


def test_the_commands_plan_and_run_carries_it_out():
    with Files() as files:
        check_command(files, answers_without_plan())


def test_a_plan_says_how_it_cuts_prompts():
    with Files() as files:
        profiles = [files.write(f"{m}.json", {**PROFILE, "machine": m}) for m in ("a", "b", "c")]

        def made(*flags):
            out = files.path("plan.json")
            text = harness.sluice("plan", "--model", LLAMA, *FP32, "--lengths", "500:2:2",
                                  *(x for path in profiles for x in ("--profile", path)),
                                  "-o", out, *flags).stdout
            with open(out) as f:
                return text, json.load(f)
        # Two prompts keep three stages busy only in slices.
        text, best = made()
        assert "prompts are cut into slices that follow each other" in text, text
        assert best["slicing"] in text, best
        assert "slicing=on" in best["stages"][0]["policy"], best
        text, whole = made("--policy", "slicing=off")
        assert "slices" not in text and "slicing" not in whole, text
        assert "slicing=off" in whole["stages"][0]["policy"], whole
        assert whole["predicted"]["seconds"] > best["predicted"]["seconds"]


def test_copies_of_a_profile_are_one_machine():
    with Files() as files:
        first, copy, other = (files.write(f"{name}.json", {**PROFILE, "machine": machine})
                              for name, machine in (("a", "m1"), ("b", "m1"), ("c", "m2")))
        said = plan(files, "--profile", first, "--profile", copy).stderr
        assert f"{first} and {copy} are one machine" in said, said
        assert plan(files, "--profile", first, "--profile", other).stderr == ""


def test_prompts_that_begin_alike_count_once():
    with Files() as files:
        harness.write_lines(files.input, [json.dumps({"prompt": [7] * 320 + [5 + i] * 9, "max_tokens": 4}) for i in range(64)])

        def seconds(command, *flags):
            out = harness.sluice(command, "--model", LLAMA, *FP32, "-i", files.input, "--profile", files.profile,
                                 "--json", *flags).stdout
            return json.loads(out)["seconds"]
        for command in ("plan", "simulate"):
            for policy in ("gbs=8", "gbs=8 c=0/0/100"):
                apart = seconds(command, "--policy", policy, "--share-prefixes", "off")
                assert seconds(command, "--policy", policy) < 0.6 * apart, (command, policy)
        # Stages whose KV lies in two tiers share nothing.
        apart = seconds("plan", "--policy", "gbs=8 c=0/50/50", "--share-prefixes", "off")
        assert seconds("plan", "--policy", "gbs=8 c=0/50/50") == apart


def test_budgets_count_beside_a_profile():
    with Files() as files:
        few = plan(files, "--profile", files.profile, "--host-memory", "1MiB", "--disk-space",
                   "1MiB", check=False)
        assert few.returncode != 0 and "memory" in few.stderr, few
        plan(files, "--profile", files.profile, "--host-memory", "1GiB", "--load-format", "dummy")
        for flags in (("--disk-dir", "/tmp"), ("--host-memory", "8")):
            done = plan(files, "--profile", files.profile, *flags, check=False)
            assert done.returncode == 2 and flags[0] in done.stderr, done
        cluster = files.write("cluster.json", {"machines": [{"profile": files.profile}]})
        done = plan(files, "--cluster", cluster, "--host-memory", "1GiB", check=False)
        assert done.returncode == 2 and "do not go with --cluster" in done.stderr, done


def test_what_makes_no_sense_is_refused_in_one_line():
    with Files() as files:
        check_bad_input(files)


def test_an_input_that_run_refuses_is_refused_in_the_same_words():
    with Files() as files:
        inputs = {"t.csv": "id,text\n1,In the\n", "a.json": '[{"prompt": "In the"}]',
                  "p.jsonl": gzip.compress(b'{"prompt": "In the"}\n' * 50)[:-10]}
        for name, content in inputs.items():
            with open(files.path(name), "wb") as f:
                f.write(content if isinstance(content, bytes) else content.encode())
            said = [harness.sluice(*command, "--model", LLAMA, "-i", files.path(name), check=False)
                    for command in (["run", "-o", files.path("out")],
                                    ["plan", "--profile", files.profile])]
            assert [done.returncode for done in said] == [2, 2], said
            assert said[0].stderr == said[1].stderr, said
        lines = ['{"prompt": "In the", "max_tokens": 2}', '{"prompt": 3}', "{"]
        harness.write_lines(files.path("mixed.jsonl"), lines)
        done = harness.sluice("plan", "--model", LLAMA, "--profile", files.profile, "-i",
                              files.path("mixed.jsonl"))
        assert "2 of 3 lines are no valid requests; the first: line 2: " in done.stderr, done.stderr
        harness.write_lines(files.path("bad.jsonl"), lines[1:])
        done = harness.sluice("plan", "--model", LLAMA, "--profile", files.profile, "-i",
                              files.path("bad.jsonl"), check=False)
        assert done.returncode == 2, done
        assert "no request to plan for: 2 of 2 lines" in done.stderr, done.stderr
        assert "the first: line 1: " in done.stderr, done.stderr


def test_run_plans_for_itself():
    with Files() as files:
        check_local(files, answers_without_plan())


def test_a_cluster_plans_its_jobs():
    with Files() as files:
        check_cluster(files, answers_without_plan())


if __name__ == "__main__":
    harness.run_tests(sys.modules[__name__])
