"""kill -9 of real processes: nothing acknowledged is lost, nothing is answered
twice, and the tokens are those of an undisturbed run."""

import json
import os
import random
import shutil
import sys
import tempfile
import time

import harness

LLAMA = os.path.join(harness.MODELS, "llama-kjv")
MIXTURE = os.path.join(harness.MODELS, "qwen3-moe-kjv")


def undisturbed(lines, *flags, model=LLAMA):
    return harness.answers(harness.run(model, lines, *flags)[1])


def check_results(cluster, job, lines, expected):
    results = cluster.results(job)
    assert len(results) == len(lines), (len(results), len(lines))
    got = harness.answers(results)  # fails on two results of one request
    assert got.keys() == expected.keys()
    for name, answer in expected.items():
        assert got[name] == answer, f"{name}:\n{answer}\n{got[name]}"


def with_enough_work(count, attempt):
    """Repeats `attempt` with ever more requests until it returns True: that
    the job still ran whenever something was killed. Machines differ."""
    while not attempt(count):
        count *= 3
        assert count < 200_000, "the kills never met a running job"


def kill_coordinator_ten_times(count, rng):
    lines = harness.mixed_requests(count, max_tokens=64)
    expected = undisturbed(lines)
    with harness.Cluster(LLAMA, workers=2) as cluster:
        path = os.path.join(cluster.directory, "in.jsonl")
        harness.write_lines(path, lines)
        job = cluster.submit(path, "--request-id", "once")["id"]
        hit = True
        for _ in range(10):
            time.sleep(rng.uniform(0.05, 0.9))
            cluster.coordinator.kill9()
            cluster.start_coordinator()
            hit = hit and cluster.status(job)["status"] != "completed"
        # The same request id does not make a second job.
        assert cluster.submit(path, "--request-id", "once")["id"] == job
        state = cluster.wait_for_end(job, 300)
        assert state["status"] == "completed", state
        assert state["request_counts"]["completed"] == len(lines), state
        check_results(cluster, job, lines, expected)
        assert len(cluster.sluice("list", "--json").stdout.splitlines()) == 1
    return hit


def test_coordinator_killed_at_ten_random_moments():
    rng = random.Random(20240607)
    with_enough_work(max(60, 1200 // harness.SLOW),
                     lambda count: kill_coordinator_ten_times(count, rng))


def test_a_restarted_coordinator_goes_on_from_the_tokens_that_it_knew():
    """Requests that end together, and late: no answer is made between restarts."""
    lines = []
    for i in range(16):
        body = {"prompt": harness.PROMPTS[i % len(harness.PROMPTS)], "max_tokens": 400,
                "ignore_eos": True, "seed": i, "temperature": 0.9 if i % 2 else 0}
        if i % 3 == 0:
            body.update(logprobs=2, echo=i % 2 == 0)
        if i % 3 == 1:
            body["stop"] = ["never in it"]
        lines.append(json.dumps({"custom_id": f"r{i}", "method": "POST",
                                 "url": "/v1/completions", "body": body}))
    expected = undisturbed(lines, "--gbs", "16")
    with harness.Cluster(LLAMA, workers=2, coordinator_flags=(
            "--gbs", "16", "--keep-interval", "0.05")) as cluster:
        path = os.path.join(cluster.directory, "in.jsonl")
        harness.write_lines(path, lines)
        job = cluster.submit(path)["id"]
        known = 0
        for round in range(6):
            # What the job has after the restart is kept; more must come before the next one.
            def more():
                state = cluster.status(job)
                return state["status"] == "completed" or state["processed_tokens"] > known + 1500
            harness.wait_for(more, "more tokens", 120)
            if cluster.status(job)["status"] == "completed":
                break
            if round % 2:
                cluster.coordinator.kill9()
            else:
                cluster.coordinator.close()
            cluster.start_coordinator()
            state = cluster.status(job)
            assert state["request_counts"]["completed"] == 0 or known > 0, state
            log = cluster.coordinator.log()
            assert "known_tokens=" in log, log
            assert state["processed_tokens"] > known, (state, known)
            known = state["processed_tokens"]
        state = cluster.wait_for_end(job, 300)
        assert state["status"] == "completed", state
        check_results(cluster, job, lines, expected)


def windowed_model(directory):
    """The model, but each second layer sees 48 positions."""
    path = os.path.join(directory, "windowed")
    shutil.copytree(LLAMA, path)
    file = os.path.join(path, "config.json")
    with open(file) as f:
        config = json.load(f)
    layers = config["num_hidden_layers"]
    config.update(model_type="smollm3", no_rope_layers=[1] * layers, use_sliding_window=True, sliding_window=48,
                  layer_types=["sliding_attention", "full_attention"] * (layers // 2))
    with open(file, "w") as f:
        json.dump(config, f)
    return path


def windowed_requests(count):
    """Prompts of up to 4 windows, whose answers take the windows' pages again."""
    lines = []
    for i in range(count):
        words = " ".join(harness.PROMPTS[(i + k) % len(harness.PROMPTS)] for k in range(12 + i % 30))
        lines.append(json.dumps({"custom_id": f"w{i}", "method": "POST", "url": "/v1/completions", "body": {
            "prompt": words, "truncate_prompt_tokens": 100 + i * 37 % 250, "max_tokens": 60 + i % 60,
            "ignore_eos": True, "logprobs": 0, "seed": i, "temperature": 0.8 if i % 2 else 0}}))
    return lines


def kill_workers_with_windows(count, model):
    lines = windowed_requests(count)
    expected = harness.answers(harness.run(model, lines)[1])
    lengths = [usage["prompt_tokens"] for _, usage in expected.values()]
    assert min(lengths) > 48 and max(lengths) > 4 * 48, lengths
    assert expected != undisturbed(lines), "the windows change nothing"
    with harness.Cluster(model, workers=2, coordinator_flags=("--max-step-tokens", "64", "--gbs", "4")) as cluster:
        path = os.path.join(cluster.directory, "in.jsonl")
        harness.write_lines(path, lines)
        job = cluster.submit(path)["id"]
        hit = True
        for i in range(2):
            done = cluster.status(job)["request_counts"]["completed"]

            def some():
                state = cluster.status(job)
                return state["status"] == "completed" or state["request_counts"]["completed"] > done + 2
            harness.wait_for(some, "some results")
            cluster.workers[f"worker-{i}"].kill9()
            del cluster.workers[f"worker-{i}"]
            hit = hit and cluster.status(job)["status"] != "completed"
            cluster.start_worker(f"worker-{i + 2}")
        state = cluster.wait_for_end(job, 300)
        assert state["status"] == "completed", state
        check_results(cluster, job, lines, expected)
    return hit and state["replays"] > 0


def test_workers_killed_while_windows_are_in_effect():
    with tempfile.TemporaryDirectory(prefix="sluice-e2e-") as directory:
        model = windowed_model(directory)
        with_enough_work(40, lambda count: kill_workers_with_windows(count, model))


def test_coordinator_killed_while_a_job_is_uploaded():
    lines = harness.mixed_requests(20000, max_tokens=8)
    rng = random.Random(7)
    with harness.Cluster(LLAMA, workers=1) as cluster:
        path = os.path.join(cluster.directory, "in.jsonl")
        harness.write_lines(path, lines)
        for i in range(3):
            import subprocess
            upload = subprocess.Popen(
                [os.path.join(harness.BIN, "sluice"), "--coordinator",
                 f"127.0.0.1:{cluster.port}", "submit", "-i", path, "--json"],
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            time.sleep(rng.uniform(0.02, 0.4))
            cluster.coordinator.kill9()
            out, _ = upload.communicate(timeout=60)
            cluster.start_coordinator()
            jobs = [json.loads(x) for x in cluster.sluice("list", "--json").stdout.splitlines()]
            if upload.returncode == 0:
                # The job was acknowledged, so it must be there, whole.
                job = json.loads(out)["id"]
                assert [j["id"] for j in jobs] == [job]
                assert jobs[0]["request_counts"]["total"] == len(lines)
                cluster.sluice("cancel", job)
                cluster.wait_for_end(job)
                cluster.sluice("delete", job)
            else:
                # An acknowledgement may have been lost on the way, but half a
                # job never exists.
                assert all(j["request_counts"]["total"] == len(lines) for j in jobs), jobs
                for j in jobs:
                    cluster.sluice("cancel", j["id"])
                    cluster.wait_for_end(j["id"])
                    cluster.sluice("delete", j["id"])


def running_or_over(cluster, job):
    def look():
        state = cluster.status(job)
        return (state["request_counts"]["running"] > 0
                or state["status"] == "completed") and state
    return harness.wait_for(look, "the job to run")


def replace_killed(cluster, job, victim):
    """Kills a worker in the middle of the job and starts another; the state in between."""
    running_or_over(cluster, job)
    cluster.workers[victim].kill9()
    state = harness.wait_for(
        lambda: (s := cluster.status(job))["detail"] and s
        or s["status"] == "completed" and s,
        "the job to pause")
    cluster.start_worker(victim)
    return state


def kill_each_worker(count, model=LLAMA, victims=("worker-1", "worker-0")):
    lines = harness.mixed_requests(count, max_tokens=64)
    expected = undisturbed(lines, model=model)
    with harness.Cluster(model, workers=2) as cluster:
        path = os.path.join(cluster.directory, "in.jsonl")
        harness.write_lines(path, lines)
        job = cluster.submit(path)["id"]
        hit = True
        for victim in victims:
            state = replace_killed(cluster, job, victim)
            if state["status"] == "completed":
                hit = False
                continue
            assert "waiting for workers: 1 of 2" in state["detail"], state
            assert state["status"] == "in_progress", state
        state = cluster.wait_for_end(job, 300)
        assert state["status"] == "completed", state
        if hit:
            assert not state["detail"], state
        check_results(cluster, job, lines, expected)
    return hit


def test_worker_killed_job_pauses_and_completes():
    with_enough_work(max(60, 600 // harness.SLOW), kill_each_worker)


def test_worker_killed_in_the_middle_of_a_mixture_of_experts():
    with_enough_work(60, lambda count: kill_each_worker(count, MIXTURE, ("worker-1",)))


def kill_one_of_two(count):
    lines = harness.mixed_requests(count, max_tokens=64)
    expected = undisturbed(lines)
    with harness.Cluster(LLAMA, workers=1) as cluster:
        cluster.start_worker("worker-1")
        path = os.path.join(cluster.directory, "in.jsonl")
        harness.write_lines(path, lines)
        job = cluster.submit(path)["id"]
        running_or_over(cluster, job)
        cluster.workers["worker-0"].kill9()
        hit = cluster.status(job)["status"] != "completed"
        state = cluster.wait_for_end(job, 300)
        assert state["status"] == "completed", state
        check_results(cluster, job, lines, expected)
        cluster.start_worker("worker-0")  # so that it ends politely below
    return hit


def test_survivor_carries_on_alone_if_one_worker_is_enough():
    with_enough_work(max(40, 400 // harness.SLOW), kill_one_of_two)


def test_cancel_keeps_results_so_far():
    lines = harness.mixed_requests(3000, max_tokens=64)
    with harness.Cluster(LLAMA, workers=1) as cluster:
        path = os.path.join(cluster.directory, "in.jsonl")
        harness.write_lines(path, lines)
        job = cluster.submit(path)["id"]
        harness.wait_for(lambda: cluster.status(job)["request_counts"]["completed"] > 0,
                         "first results")
        done = cluster.sluice("delete", job, check=False)
        assert done.returncode == 1 and job in done.stderr, done.stderr
        cluster.sluice("cancel", job)
        state = cluster.wait_for_end(job)
        counts = state["request_counts"]
        assert state["status"] == "cancelled", state
        assert counts["completed"] + counts["failed"] == counts["total"] == 3000
        assert counts["cancelled"] > 0
        results = cluster.results(job)
        assert len(results) == 3000
        assert sum(r["error"] is None for r in results) == counts["completed"]
        cluster.sluice("delete", job)
        assert cluster.sluice("status", job, check=False).returncode == 2


if __name__ == "__main__":
    harness.run_tests(sys.modules[__name__])
