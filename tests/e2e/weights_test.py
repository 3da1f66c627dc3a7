"""Answers of one job are one model's: workers whose copies differ in a single
byte do not work together, and a job goes on with the weights that it began with.

    python3 weights_test.py [--runs N] [--seed S] [TEST ...]
"""

import json
import os
import random
import re
import shutil
import sys

import harness

LLAMA = os.path.join(harness.MODELS, "llama-kjv")
# The command line sets these: how often the test with chance in it runs, and with which seed it
# begins.
RUNS, SEED = 1, 1


def copy_of_model(directory, name):
    path = os.path.join(directory, name)
    shutil.copytree(LLAMA, path)
    return path


def flip_a_byte(model, rng):
    """Changes one bit of one weight, without a trace in size, names or time of
    change; returns the file's name."""
    shard = rng.choice(sorted(f for f in os.listdir(model) if f.endswith(".safetensors")))
    path = os.path.join(model, shard)
    before = os.stat(path)
    with open(path, "r+b") as f:
        data_begins = 8 + int.from_bytes(f.read(8), "little")
        place = rng.randrange(data_begins, before.st_size)
        f.seek(place)
        byte = f.read(1)[0]
        f.seek(place)
        f.write(bytes([byte ^ 1 << rng.randrange(8)]))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    return shard


def refusals(cluster):
    return re.findall(r"worker refused: (.*)", cluster.coordinator.log())


def states(cluster):
    shown = json.loads(cluster.sluice("cluster", "--json").stdout)
    return {worker["name"]: worker["state"] for worker in shown["workers"]}


def refuse_a_flipped_byte(rng):
    lines = harness.mixed_requests(20)
    expected = harness.answers(harness.run(LLAMA, lines)[1])
    head_has_weights = rng.random() < 0.5
    with harness.Cluster(LLAMA, workers=2, started=False) as cluster:
        if not head_has_weights:
            cluster.model = os.path.join(cluster.directory, "head")
            shutil.copytree(LLAMA, cluster.model,
                            ignore=shutil.ignore_patterns("*.safetensors*"))
        cluster.start_coordinator()
        good = copy_of_model(cluster.directory, "good")
        bad = copy_of_model(cluster.directory, "bad")
        shard = flip_a_byte(bad, rng)
        cluster.model = good
        cluster.start_worker("w1")
        if not head_has_weights:  # the first one counts
            harness.wait_for(lambda: states(cluster), "w1")
        cluster.model = bad
        cluster.start_worker("w2")
        [line, *_] = harness.wait_for(lambda: refusals(cluster), "the refusal")
        whose = ("the coordinator in " + LLAMA if head_has_weights
                 else f"worker 'w1' in {good}")
        assert line.startswith(f"worker 'w2' has another model in {bad} than {whose}: "
                               f"{shard} differs; copy it again"), line
        assert not re.search("[0-9a-f]{16}", line), line
        assert list(states(cluster)) == ["w1"], states(cluster)
        # Copied again, it is taken without another start.
        shutil.copy(os.path.join(good, shard), os.path.join(bad, shard))
        path = os.path.join(cluster.directory, "in.jsonl")
        harness.write_lines(path, lines)
        job = cluster.submit(path)["id"]
        assert cluster.wait_for_end(job)["status"] == "completed"
        assert set(states(cluster)) == {"w1", "w2"}
        assert harness.answers(cluster.results(job)) == expected


def test_a_worker_with_a_flipped_byte_is_refused():
    for run in range(RUNS):
        refuse_a_flipped_byte(random.Random(SEED + run))
        if RUNS > 1:
            print(f"run {run + 1} of {RUNS}: refused, seed {SEED + run}", flush=True)


def test_a_copy_that_changes_under_its_worker_is_refused_until_it_is_whole():
    lines = harness.mixed_requests(20)
    expected = harness.answers(harness.run(LLAMA, lines)[1])
    with harness.Cluster(LLAMA, workers=1, started=False) as cluster:
        path = os.path.join(cluster.directory, "in.jsonl")
        harness.write_lines(path, lines)
        cluster.start_coordinator()
        mine = copy_of_model(cluster.directory, "mine")
        cluster.model = mine
        cluster.start_worker("w1")
        harness.wait_for(lambda: states(cluster) == {"w1": "ready"}, "w1 to work")
        cluster.model = LLAMA
        cluster.start_worker("w2")
        harness.wait_for(lambda: states(cluster) == {"w1": "ready", "w2": "ready"},
                         "both to work")
        shard = flip_a_byte(mine, random.Random(3))
        cluster.workers.pop("w2").kill9()  # so that w1 loads all
        job = cluster.submit(path)["id"]
        [line, *_] = harness.wait_for(lambda: refusals(cluster), "the refusal")
        assert f"{shard} differs; copy it again" in line, line
        shutil.copy(os.path.join(LLAMA, shard), os.path.join(mine, shard))
        assert cluster.wait_for_end(job)["status"] == "completed"
        assert harness.answers(cluster.results(job)) == expected


def test_a_job_goes_on_with_the_weights_that_it_began_with():
    lines = harness.mixed_requests(max(100, 400 // harness.SLOW), max_tokens=64)
    expected = harness.answers(harness.run(LLAMA, lines)[1])
    with harness.Cluster(LLAMA, workers=1, started=False, coordinator_flags=[
            "--served-model-name", "m"]) as cluster:  # whatever directory it is in
        begun = copy_of_model(cluster.directory, "begun")
        other = copy_of_model(cluster.directory, "other")
        flip_a_byte(other, random.Random(2))
        path = os.path.join(cluster.directory, "in.jsonl")
        harness.write_lines(path, lines)
        cluster.model = begun
        cluster.start_coordinator()
        cluster.start_worker("w")
        job = cluster.submit(path)["id"]
        harness.wait_for(lambda: cluster.status(job)["request_counts"]["completed"] > 0,
                         "the first answer")
        cluster.workers.pop("w").kill9()
        cluster.coordinator.kill9()
        cluster.model = other  # everywhere
        cluster.start_coordinator()
        state = cluster.status(job)
        assert state["status"] == "in_progress", "over too soon: more requests are needed"
        cluster.start_worker("w")
        [line, *_] = harness.wait_for(lambda: refusals(cluster), "the refusal")
        assert "than unfinished jobs began with: " in line, line
        assert cluster.status(job)["request_counts"] == state["request_counts"]
        cluster.workers.pop("w").kill9()
        cluster.model = begun  # at the worker is enough
        cluster.start_worker("w")
        assert cluster.wait_for_end(job, 600)["status"] == "completed"
        assert harness.answers(cluster.results(job)) == expected


if __name__ == "__main__":
    for flag in ("--runs", "--seed"):
        if flag in sys.argv:
            at = sys.argv.index(flag)
            value = int(sys.argv[at + 1])
            RUNS, SEED = (value, SEED) if flag == "--runs" else (RUNS, value)
            del sys.argv[at:at + 2]
    harness.run_tests(sys.modules[__name__])
