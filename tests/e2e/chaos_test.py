"""kill -9 of workers and of the coordinator at seeded moments, while all links speak mutual TLS and users show tokens: each
request is answered once, with the answer of an undisturbed run in the clear.

SLUICE_CHAOS_SEEDS names other seeds than the first: SLUICE_CHAOS_SEEDS="1 2 3"."""

import os
import random
import sys
import tempfile
import time

import harness
import recovery_test

KILLS = 6
WORKERS = ("worker-0", "worker-1", "worker-2")


def kill_one(cluster, rng):
    """Kills the coordinator or a worker, and starts it again, at once or when the others have gone on."""
    victim = rng.choice(("coordinator", *WORKERS))
    if victim == "coordinator":
        cluster.coordinator.kill9()
        cluster.start_coordinator()
        return victim
    cluster.workers[victim].kill9()
    time.sleep(rng.choice((0, 0.3)))
    cluster.start_worker(victim)
    return victim


def chaos(directory, seed, count):
    """Whether the job ran at each of the kills."""
    rng = random.Random(seed)
    lines = harness.mixed_requests(count, max_tokens=64)
    expected = recovery_test.undisturbed(lines)
    trust = harness.Trust(tempfile.mkdtemp(dir=directory))
    token = trust.make_token("user", "--tenant", "lab")
    with harness.Cluster(recovery_test.LLAMA, workers=2, trust=trust,
                         coordinator_flags=("--keep-interval", "0.2", "--heartbeat-timeout", "2")) as cluster:
        cluster.token = token
        cluster.start_worker("worker-2")
        path = os.path.join(cluster.directory, "in.jsonl")
        harness.write_lines(path, lines)
        job = cluster.submit(path)["id"]
        hit, killed = True, []
        for _ in range(KILLS):
            recovery_test.running_or_over(cluster, job)
            time.sleep(rng.uniform(0, 0.6))
            killed.append(kill_one(cluster, rng))
            hit = hit and cluster.status(job)["status"] != "completed"
        state = cluster.wait_for_end(job, 300)
        assert state["status"] == "completed" and state["request_counts"]["completed"] == count, state
        recovery_test.check_results(cluster, job, lines, expected)
        stranger = cluster.sluice("status", job, check=False, token="stranger" * 4)
        assert stranger.returncode == 1 and "not known" in stranger.stderr, stranger
    print(f"seed {seed}: {count} requests, killed {', '.join(killed)}, replays {state['replays']}", flush=True)
    return hit


def test_answers_outlive_kills_under_mutual_tls(directory):
    for seed in map(int, os.environ.get("SLUICE_CHAOS_SEEDS", "1").split()):
        recovery_test.with_enough_work(max(60, 600 // harness.SLOW), lambda count: chaos(directory, seed, count))


harness.give_directories(globals())

if __name__ == "__main__":
    harness.run_tests(sys.modules[__name__])
