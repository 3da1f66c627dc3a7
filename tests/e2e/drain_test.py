"""Workers that go on purpose: `sluice drain`, and SIGTERM. Jobs go on with the same answers, and nobody is told
of a loss."""

import json
import os
import re
import signal
import sys
import urllib.request

import harness

LLAMA = os.path.join(harness.MODELS, "llama-kjv")


def job_lines(count):
    return [json.dumps({"custom_id": f"r{i}", "prompt": f"And the LORD spake unto {i}", "max_tokens": 150,
                        "ignore_eos": True}) for i in range(count)]


def workers(cluster):
    state = json.loads(cluster.sluice("cluster", "--json").stdout)
    return {w["name"]: w for w in state["workers"]}, {a["name"]: a for a in state["absent"]}


def metric(cluster, pattern):
    text = urllib.request.urlopen(cluster.metrics_url, timeout=10).read().decode()
    match = re.search(f"^{pattern} (\\S+)$", text, re.M)
    return match and float(match[1])


def with_a_running_job(cluster, act):
    """Calls act() while a job runs, and checks that its answers are those of an undisturbed run."""
    lines = job_lines(400)
    path = os.path.join(cluster.directory, "in.jsonl")
    harness.write_lines(path, lines)
    job = cluster.submit(path)["id"]
    harness.wait_for(lambda: cluster.status(job)["request_counts"]["running"] > 0, "the job to run")
    act()
    end = cluster.wait_for_end(job, 300)
    assert end["request_counts"]["completed"] == len(lines), end
    expected = harness.answers(harness.run(LLAMA, lines)[1])
    assert harness.answers(cluster.results(job)) == expected


def test_a_worker_is_drained_and_taken_back():
    with harness.Cluster(LLAMA, workers=2, coordinator_flags=["--plan", "off"]) as cluster:
        cluster.start_worker("worker-2")
        harness.wait_for(lambda: sum(w["state"] == "ready" for w in workers(cluster)[0].values()) == 3,
                         "three workers in the plan")

        def drain():
            done = cluster.sluice("drain", "worker-1")
            assert "is drained" in done.stdout, done
            here, absent = workers(cluster)
            assert here["worker-1"]["state"] == "drained" and here["worker-1"]["stage"] == -1, here
            assert not absent, absent
        with_a_running_job(cluster, drain)
        assert "drained" in cluster.sluice("cluster").stdout
        assert metric(cluster, r'sluice_workers\{state="drained"\}') == 1
        # It survives a restart of the coordinator, as it is the worker that knows.
        cluster.coordinator.kill9()
        cluster.start_coordinator()
        harness.wait_for(lambda: workers(cluster)[0].get("worker-1", {}).get("state") == "drained",
                         "the drained worker to return")
        cluster.sluice("drain", "worker-1", "--undo")
        harness.wait_for(lambda: sum(w["state"] == "ready" for w in workers(cluster)[0].values()) == 3,
                         "it to be in the plan again")
        done = cluster.sluice("drain", "nobody", check=False)
        assert done.returncode == 2 and "no worker \"nobody\"" in done.stderr, done


def test_sigterm_hands_over_and_is_no_loss():
    with harness.Cluster(LLAMA, workers=2, coordinator_flags=["--plan", "off"]) as cluster:
        cluster.start_worker("worker-2")
        harness.wait_for(lambda: sum(w["state"] == "ready" for w in workers(cluster)[0].values()) == 3,
                         "three workers in the plan")

        def stop():
            cluster.workers["worker-1"].popen.send_signal(signal.SIGTERM)
            assert cluster.workers["worker-1"].popen.wait(60 * harness.SLOW) == 0
        with_a_running_job(cluster, stop)
        here, absent = workers(cluster)
        assert "worker-1" not in here and absent["worker-1"]["kind"] == "left", (here, absent)
        assert metric(cluster, r'sluice_worker_up\{worker="worker-1"\}') is None
        assert metric(cluster, r'sluice_worker_up\{worker="worker-2"\}') == 1
        assert metric(cluster, r'sluice_workers_gone_total\{how="left"\}') == 1
        assert metric(cluster, r'sluice_workers_gone_total\{how="lost"\}') == 0
        assert metric(cluster, r'sluice_plan_failures_total\{reason="lost"\}') == 0
        # Two are left, and both are needed: what is stopped ends at once, and jobs are told who is missing.
        cluster.workers["worker-2"].close()
        detail = harness.wait_for(
            lambda: (s := json.loads(cluster.sluice("cluster", "--json").stdout)["state"]).startswith("waiting") and s,
            "the cluster to wait")
        assert "worker 'worker-2' was stopped" in detail, detail
        # What was killed is a loss.
        cluster.workers["worker-0"].kill9()
        harness.wait_for(lambda: metric(cluster, r'sluice_workers_gone_total\{how="lost"\}') == 1, "the loss")
        assert metric(cluster, r'sluice_worker_up\{worker="worker-0"\}') == 0
        for name in ("worker-0", "worker-1", "worker-2"):
            cluster.workers.pop(name)


if __name__ == "__main__":
    harness.run_tests(sys.modules[__name__])
