"""Several pipelines of one model, by real processes: the answers of one worker, each once, whatever dies; and
`sluice-worker --all`, which starts a machine's workers."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time

import harness
import plan_test

LLAMA = os.path.join(harness.MODELS, "llama-kjv")


def undisturbed(lines):
    return harness.answers(harness.run(LLAMA, lines)[1])


def check_results(cluster, job, lines, expected):
    results = cluster.results(job)
    assert len(results) == len(lines), (len(results), len(lines))
    got = harness.answers(results)  # fails on two results of one request
    assert got == expected


def state_of(cluster):
    return json.loads(cluster.sluice("cluster", "--json").stdout)


def pipelines_of(cluster):
    return {p["pipeline"]: p for p in state_of(cluster)["pipelines"]}


def wait_for_pipelines(cluster, stages):
    """Waits until pipelines of so many stages each run; returns their epochs."""
    def look():
        found = pipelines_of(cluster)
        ready = [p["num_stages"] for _, p in sorted(found.items())
                 if p["state"] in ("idle", "running")]
        return found if ready == stages else None
    return {n: p["epoch"] for n, p in harness.wait_for(look, f"pipelines of {stages}").items()}


def answers_of(workers, replicas, stages):
    lines = harness.mixed_requests(max(40, 160 // harness.SLOW), max_tokens=40)
    expected = undisturbed(lines)
    with harness.Cluster(LLAMA, workers=workers,
                         coordinator_flags=["--replicas", str(replicas), "--gbs", "8"]) as cluster:
        wait_for_pipelines(cluster, stages)
        path = os.path.join(cluster.directory, "in.jsonl")
        harness.write_lines(path, lines)
        began = time.monotonic()
        job = cluster.submit(path)["id"]
        state = cluster.wait_for_end(job)
        assert state["status"] == "completed", state
        check_results(cluster, job, lines, expected)
        # Wall time, not a sum over pipelines.
        seconds = state_of(cluster)
        seconds = seconds["prefill_seconds"] + seconds["decode_seconds"]
        assert 0 < seconds <= time.monotonic() - began, seconds
        found = pipelines_of(cluster)
        assert all(p["generated_tokens"] > 0 for p in found.values()), found
        text = cluster.sluice("cluster").stdout
        assert f"pipeline {replicas - 1}: plan" in text, text


def test_two_pipelines_of_two_answer_as_one_worker():
    answers_of(4, 2, [2, 2])


def test_four_replicas_answer_as_one_worker():
    answers_of(4, 4, [1, 1, 1, 1])


def kill_one(count):
    lines = harness.mixed_requests(count, max_tokens=64)
    expected = undisturbed(lines)
    # Of each pipeline's two workers one alone is not enough.
    with harness.Cluster(LLAMA, workers=4, coordinator_flags=["--replicas", "2", "--gbs", "8"]) as cluster:
        epochs = wait_for_pipelines(cluster, [2, 2])
        path = os.path.join(cluster.directory, "in.jsonl")
        harness.write_lines(path, lines)
        job = cluster.submit(path)["id"]
        harness.wait_for(lambda: all(p["running"] > 0 for p in pipelines_of(cluster).values())
                         or cluster.status(job)["status"] == "completed", "both pipelines to run")
        cluster.workers["worker-1"].kill9()
        hit = cluster.status(job)["status"] != "completed"
        if hit:
            harness.wait_for(
                lambda: "1 of 2 in the pipeline" in pipelines_of(cluster)[0]["state"]
                or cluster.status(job)["status"] == "completed", "the pipeline to notice")
            hit = cluster.status(job)["status"] != "completed"
        # The other pipeline takes all requests, and never stops.
        state = cluster.wait_for_end(job, 300)
        assert state["status"] == "completed", state
        check_results(cluster, job, lines, expected)
        assert pipelines_of(cluster)[1]["epoch"] == epochs[1]
        cluster.start_worker("worker-1")
        after = wait_for_pipelines(cluster, [2, 2])
        assert after[1] == epochs[1] and after[0] > epochs[0], (epochs, after)
        return hit


def test_a_killed_worker_stops_its_own_pipeline_only():
    count = max(60, 300 // harness.SLOW)
    while not kill_one(count):
        count *= 3
        assert count < 100_000, "the kill never met a running job"


def test_a_killed_coordinator_finds_its_pipelines_again():
    lines = harness.mixed_requests(max(60, 400 // harness.SLOW), max_tokens=48)
    expected = undisturbed(lines)
    with harness.Cluster(LLAMA, workers=2, coordinator_flags=["--replicas", "2", "--gbs", "8"]) as cluster:
        wait_for_pipelines(cluster, [1, 1])
        path = os.path.join(cluster.directory, "in.jsonl")
        harness.write_lines(path, lines)
        job = cluster.submit(path)["id"]
        harness.wait_for(lambda: cluster.status(job)["request_counts"]["completed"] > 0, "a result")
        cluster.coordinator.kill9()
        cluster.start_coordinator()
        state = cluster.wait_for_end(job, 300)
        assert state["status"] == "completed", state
        check_results(cluster, job, lines, expected)


# -- Planned.


def with_profiles(directory, count):
    """Profiles of machines of their own, each fast enough for the whole model."""
    paths = []
    for i in range(count):
        paths.append(os.path.join(directory, f"m{i}.json"))
        with open(paths[-1], "w") as f:
            json.dump({**plan_test.PROFILE, "name": f"m{i}", "machine": f"machine-{i}"}, f)
    return paths


def test_a_layout_is_planned_written_and_carried_out():
    # Of fewer requests, three pipelines would take as many steps as four.
    lines = harness.mixed_requests(240)
    expected = undisturbed(lines)
    with tempfile.TemporaryDirectory(prefix="sluice-layout-") as directory:
        source = os.path.join(directory, "in.jsonl")
        harness.write_lines(source, lines)
        flags = ["plan", "--model", LLAMA, "-i", source]
        for path in with_profiles(directory, 4):
            flags += ["--profile", path]
        written = os.path.join(directory, "layout.json")
        text = harness.sluice(*flags, "--replicas", "auto", "-o", written).stdout
        assert "4 pipelines" in text and "--- pipeline 3" in text, text
        assert "replicas=1" in text and "other layouts" in text, text
        two = json.loads(harness.sluice(*flags, "--replicas", "2", "--json").stdout)
        assert [len(p["stages"]) for p in two["plan"]["pipelines"]] == [2, 2], two
        one = json.loads(harness.sluice(*flags, "--json").stdout)
        assert len(one["plan"]["stages"]) == 4, one
        assert one["tokens_per_second"] < two["tokens_per_second"]
        done = harness.sluice(*flags, "--replicas", "5", check=False)
        assert done.returncode == 2 and "5 replicas" in done.stderr, done
        # The coordinator gives each pipeline the workers that its plan names.
        with open(written, "w") as f:
            plan = two["plan"]
            names = iter(("worker-3", "worker-1", "worker-0", "worker-2"))
            for pipeline in plan["pipelines"]:
                for stage in pipeline["stages"]:
                    stage["worker"] = next(names)
            json.dump(plan, f)
        with harness.Cluster(LLAMA, workers=4, coordinator_flags=["--policy", f"@{written}"]) as cluster:
            wait_for_pipelines(cluster, [2, 2])
            places = {w["name"]: (w["pipeline"], w["stage"]) for w in state_of(cluster)["workers"]}
            assert places == {"worker-3": (0, 0), "worker-1": (0, 1),
                              "worker-0": (1, 0), "worker-2": (1, 1)}, places
            job = cluster.submit(source)["id"]
            status = cluster.wait_for_end(job)
            check_results(cluster, job, lines, expected)
            assert [len(p["stages"]) for p in status["plan"]["pipelines"]] == [2, 2], status
            assert "2 pipelines of 2 + 2 stages" in cluster.sluice("status", job).stdout


def unlike_layout(directory, source):
    """A layout of two pipelines, the first of which has as little KV cache as a stage may: that of one sequence."""
    flags = ["plan", "--model", LLAMA, "-i", source]
    for path in with_profiles(directory, 2):
        flags += ["--profile", path]
    plan = json.loads(harness.sluice(*flags, "--replicas", "2", "--json").stdout)["plan"]
    for i, pipeline in enumerate(plan["pipelines"]):
        pipeline["stages"][0]["worker"] = f"worker-{i}"
    small = plan["pipelines"][0]
    small["kv_positions"] = 64
    policy = small["stages"][0]["policy"].replace("c=auto", "c=0/100/0")
    small["stages"][0]["policy"] = re.sub(r"\bgbs=\d+", "gbs=1", policy)
    written = os.path.join(directory, "layout.json")
    with open(written, "w") as f:
        json.dump(plan, f)
    return written


def kill_the_large_pipeline(count):
    lines = [json.dumps({"custom_id": f"l{i}", "method": "POST", "url": "/v1/completions",
                         "body": {"prompt": "And it came to pass", "temperature": 0, "ignore_eos": True,
                                  "max_tokens": 500 if i % 4 == 0 else 5 + i % 50}}) for i in range(count)]
    expected = undisturbed(lines)
    with tempfile.TemporaryDirectory(prefix="sluice-layout-") as directory:
        source = os.path.join(directory, "in.jsonl")
        harness.write_lines(source, lines)
        layout = unlike_layout(directory, source)
        with harness.Cluster(LLAMA, workers=2, coordinator_flags=["--policy", f"@{layout}"]) as cluster:
            epochs = wait_for_pipelines(cluster, [1, 1])
            job = cluster.submit(source)["id"]
            harness.wait_for(lambda: pipelines_of(cluster)[1]["running"] > 0
                             or cluster.status(job)["status"] == "completed", "both pipelines to run")
            cluster.workers["worker-1"].kill9()
            harness.wait_for(lambda: 1 not in pipelines_of(cluster), "the loss to be noticed")
            hit = cluster.status(job)["status"] != "completed"
            state = cluster.wait_for_end(job, 300)
            assert state["status"] == "completed" and state["request_counts"]["failed"] == 0, state
            check_results(cluster, job, lines, expected)
            cluster.start_worker("worker-1")
            after = wait_for_pipelines(cluster, [1, 1])
            assert after[0] == epochs[0] and after[1] > epochs[1], (epochs, after)
            return hit


def test_the_least_kv_cache_takes_what_a_killed_pipeline_leaves():
    count = max(20, 60 // harness.SLOW)
    while not kill_the_large_pipeline(count):
        count *= 3
        assert count < 10_000, "the kill never met a running job"


def test_the_planner_groups_workers():
    lines = harness.mixed_requests(60)
    expected = undisturbed(lines)
    with tempfile.TemporaryDirectory(prefix="sluice-layout-") as directory:
        source = os.path.join(directory, "in.jsonl")
        harness.write_lines(source, lines)
        paths = with_profiles(directory, 3)
        with harness.Cluster(LLAMA, workers=2, started=False) as cluster:
            cluster.start_coordinator()
            for i in range(2):
                cluster.start_worker(f"worker-{i}", "--machine-part", f"part{i}/1", "--profile", paths[i])
            job = cluster.submit(source)["id"]
            epochs = wait_for_pipelines(cluster, [1, 1])
            assert cluster.wait_for_end(job)["status"] == "completed"
            check_results(cluster, job, lines, expected)
            # One that comes while there is nothing to do changes nothing.
            cluster.start_worker("worker-2", "--machine-part", "part2/1", "--profile", paths[2])
            harness.wait_for(lambda: len(state_of(cluster)["workers"]) == 3, "the third worker")
            second = cluster.submit(source)["id"]
            assert cluster.wait_for_end(second)["status"] == "completed"
            check_results(cluster, second, lines, expected)
            after = {p["pipeline"]: p["epoch"] for p in state_of(cluster)["pipelines"]}
            assert {n: after[n] for n in epochs} == epochs, (epochs, after)


def test_a_replaced_worker_lets_the_job_go_on():
    """One of two that share a machine is worth so little that the planner would do without it; but a job needs two."""
    lines = harness.mixed_requests(40)
    expected = undisturbed(lines)
    with tempfile.TemporaryDirectory(prefix="sluice-layout-") as directory:
        source = os.path.join(directory, "in.jsonl")
        harness.write_lines(source, lines)
        path = os.path.join(directory, "machine.json")
        with open(path, "w") as f:
            json.dump({**plan_test.PROFILE, "name": "m", "machine": "machine"}, f)
        with harness.Cluster(LLAMA, workers=2, started=False) as cluster:
            cluster.start_coordinator()
            for i in range(2):
                cluster.start_worker(f"worker-{i}", "--profile", path)
            job = cluster.submit(source)["id"]
            assert cluster.wait_for_end(job)["status"] == "completed"
            cluster.workers.pop("worker-1").kill9()
            harness.wait_for(lambda: len(state_of(cluster)["workers"]) == 1, "the loss to be noticed")
            # It has another name, as one that nobody saw before.
            cluster.start_worker("worker-2", "--profile", path)
            harness.wait_for(lambda: len(state_of(cluster)["workers"]) == 2, "the new worker")
            assert "1 of 2 registered" not in state_of(cluster)["state"], state_of(cluster)["state"]
            job = cluster.submit(source)["id"]
            state = cluster.wait_for_end(job, 30)
            assert state["status"] == "completed", state
            check_results(cluster, job, lines, expected)


# -- sluice-worker --all.


def all_workers(cluster, *flags):
    if "--device" not in flags:
        flags = ("--device", "cpu", *flags)
    return [os.path.join(harness.BIN, "sluice-worker"), "--all", "--model", LLAMA,
            "--coordinator", f"127.0.0.1:{cluster.port}", "--name", "box", "--no-profile",
            "--port", "0", "--metrics-port", "0", "--host-memory", "1GiB", *flags]


def parts_here():
    """How many workers --per N may start here: one a core."""
    return min(2, len(os.sched_getaffinity(0)))


def worker_names(cluster):
    return sorted(w["name"] for w in state_of(cluster)["workers"])


def pids_by_name(log):
    return {name: int(pid) for name, pid in
            re.findall(r"worker=(\S+) pid=(\d+) started", log)}


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_all_starts_restarts_and_ends_workers():
    parts = parts_here()
    names = [f"box-part{i}" for i in range(parts)]
    lines = harness.mixed_requests(40)
    expected = undisturbed(lines)
    with harness.Cluster(LLAMA, workers=0,
                         coordinator_flags=["--replicas", str(parts)]) as cluster:
        fleet = harness.Process(cluster.directory, "fleet", all_workers(cluster, "--per", str(parts)))
        cluster.workers["fleet"] = fleet  # ended with the others
        wait_for_pipelines(cluster, [1] * parts)
        assert worker_names(cluster) == names
        # One stream of output, with names.
        with open(fleet.out_path) as f:
            out = f.read()
        for name in names:
            assert f"[{name}] listening on 127.0.0.1:" in out, out
        pids = pids_by_name(fleet.log())
        assert sorted(pids) == names, fleet.log()
        cores = [frozenset(os.sched_getaffinity(pid)) for pid in pids.values()]
        assert len(set().union(*cores)) == sum(len(c) for c in cores), cores

        os.kill(pids[names[0]], signal.SIGKILL)
        harness.wait_for(lambda: pids_by_name(fleet.log())[names[0]] != pids[names[0]],
                         "the killed worker to be started again")
        wait_for_pipelines(cluster, [1] * parts)
        assert worker_names(cluster) == names
        again = pids_by_name(fleet.log())
        assert all(again[n] == pids[n] for n in names[1:]), (pids, again)

        path = os.path.join(cluster.directory, "in.jsonl")
        harness.write_lines(path, lines)
        job = cluster.submit(path)["id"]
        assert cluster.wait_for_end(job)["status"] == "completed"
        check_results(cluster, job, lines, expected)
        fleet.close()  # SIGTERM: it ends with 0, and so have its workers
        assert not any(alive(pid) for pid in again.values()), again
        harness.wait_for(lambda: worker_names(cluster) == [], "the workers to leave")


def test_workers_do_not_outlive_a_killed_supervisor():
    with harness.Cluster(LLAMA, workers=0) as cluster:
        fleet = harness.Process(cluster.directory, "fleet", all_workers(cluster, "--per", "1"))
        cluster.workers["fleet"] = fleet
        harness.wait_for(lambda: worker_names(cluster) == ["box-part0"], "the worker")
        pid = pids_by_name(fleet.log())["box-part0"]
        fleet.kill9()
        harness.wait_for(lambda: not alive(pid), "the worker to end")
        del cluster.workers["fleet"]


def run_all(*flags, env=None):
    return subprocess.run(
        [os.path.join(harness.BIN, "sluice-worker"), "--model", LLAMA, *flags],
        capture_output=True, text=True, timeout=60 * harness.SLOW, env={**os.environ, **(env or {})})


def test_all_says_what_it_would_start():
    done = run_all("--all", "--per", "1", "--dry-run", "--name", "box", "--host-memory", "2GiB")
    assert done.returncode == 0, done.stderr
    line = next(x for x in done.stdout.splitlines() if x.startswith("box-part0"))
    assert "2048 MiB" in line and "7072" in line and "7173" in line, done.stdout
    # Each flag's twin in the environment works, and its workers do not get it.
    done = run_all("--dry-run", "--per", "1", env={"SLUICE_WORKER_ALL": "true"})
    assert done.returncode == 0 and "part0" in done.stdout, (done.stdout, done.stderr)


def test_all_refuses_what_makes_no_sense():
    for flags, why in [
            (["--per", "socket"], "--per socket"),
            (["--per", "100000"], "--per 100000"),
            (["--per", "gpu", "--device", "cpu"], "no GPU"),
            (["--per", "1", "--advertise", "host:1"], "--advertise"),
            (["--per", "1", "--device", "cuda:0"], "cuda:0"),
            (["--per", "1", "--device", "cuda:0,cuda:1"], "--device cuda:0,cuda:1 names single devices"),
            (["--per", "1", "--port", "65536"], "--port: must be a whole number from 0 to 65535"),
            (["--per", "1", "--cache-dir", "/tmp"], "workers without --model"),
            (["--per", "1", "--port", "7072", "--metrics-port", "7072"], "--metrics-port"),
            (["--per", "1", "--disk-space", "1GiB"], "--disk-space"),
            (["--per", "1", "--host-memory", "20MiB"], "--host-memory")]:
        done = run_all("--all", "--dry-run", *flags)
        assert done.returncode != 0 and why in done.stderr, (flags, done)
    done = run_all("--dry-run")
    assert done.returncode == 2 and "--all" in done.stderr, done


def test_all_needs_no_model():
    """Workers that fetch the model, and ports that nobody said."""
    parts = parts_here()
    environment = {k: v for k, v in os.environ.items() if k != "SLUICE_MODEL"}

    def dry(*flags):
        return subprocess.run([os.path.join(harness.BIN, "sluice-worker"), "--all", "--dry-run", "--name", "box",
                               "--per", str(parts), "--host-memory", "1GiB", *flags],
                              capture_output=True, text=True, timeout=60 * harness.SLOW, env=environment)
    done = dry()
    assert done.returncode == 0, done.stderr
    rows = [row.split() for row in done.stdout.splitlines()[1:]]
    ports = [port for row in rows for port in row[7:9]]
    assert ports == [str(port + i) for i in range(parts) for port in (7072, 7173)], done.stdout
    for flags, why in [(["--model", ""], "--model is empty"), (["--model", "/nonexistent"], "/nonexistent"),
                       (["--cache-space", "plenty"], "--cache-space")]:
        done = dry(*flags)
        assert done.returncode != 0 and why in done.stderr, (flags, done)


def test_all_fetches_the_model():
    """Parts of two ranks each, which fetch the model into one cache and are replicas."""
    parts = parts_here()
    lines = harness.mixed_requests(20)
    expected = undisturbed(lines)
    with harness.Cluster(LLAMA, workers=0, coordinator_flags=["--replicas", str(parts)]) as cluster:
        flags = all_workers(cluster, "--per", str(parts), "--tensor-parallel", "2",
                            "--cache-dir", os.path.join(cluster.directory, "cache"))
        at = flags.index("--model")
        del flags[at:at + 2]
        cluster.workers["fleet"] = harness.Process(cluster.directory, "fleet", flags)
        wait_for_pipelines(cluster, [1] * parts)
        path = os.path.join(cluster.directory, "in.jsonl")
        harness.write_lines(path, lines)
        job = cluster.submit(path)["id"]
        assert cluster.wait_for_end(job)["status"] == "completed"
        check_results(cluster, job, lines, expected)


def test_another_number_of_pipelines_than_the_plan_has():
    with tempfile.TemporaryDirectory(prefix="sluice-layout-") as directory:
        source = os.path.join(directory, "in.jsonl")
        harness.write_lines(source, harness.mixed_requests(8))
        layout = unlike_layout(directory, source)
        for replicas in ("1", "3"):
            done = subprocess.run(
                [os.path.join(harness.BIN, "sluice-coordinator"), "--model", LLAMA, "--state-dir", directory,
                 "--port", "0", "--metrics-port", "0", "--policy", f"@{layout}", "--replicas", replicas],
                capture_output=True, text=True, timeout=60 * harness.SLOW)
            assert done.returncode == 2 and f"--replicas {replicas}: the plan of --policy has 2 pipelines" in \
                done.stderr, done


def test_a_refused_flag_ends_all():
    with harness.Cluster(LLAMA, workers=0) as cluster:
        # The worker finds out that such a device needs --device-memory.
        done = subprocess.run(all_workers(cluster, "--per", "1", "--device", "cpu-discrete"),
                              capture_output=True, text=True, timeout=60 * harness.SLOW)
        assert done.returncode == 2, done
        assert "[box-part0] sluice-worker: " in done.stderr, done.stderr
        assert "--device-memory" in done.stderr and "refused its flags" in done.stderr, done.stderr


if __name__ == "__main__":
    harness.run_tests(sys.modules[__name__])
