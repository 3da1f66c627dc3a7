"""Workers that others can't reach, by real processes: those that can work together compute, whoever else is there and
whatever is started again."""

import json
import os
import socket
import sys
import urllib.request

import harness

LLAMA = os.path.join(harness.MODELS, "llama-kjv")


class Hole:
    """A port that takes connections and never says a word."""

    def __init__(self):
        self.socket = socket.socket()
        self.socket.bind(("127.0.0.1", 0))
        self.socket.listen(1024)
        self.port = self.socket.getsockname()[1]


def state_of(cluster):
    return json.loads(cluster.sluice("cluster", "--json").stdout)


def tokens(cluster):
    """Tokens that the coordinator's process has seen."""
    with urllib.request.urlopen(cluster.metrics_url, timeout=10) as page:
        for line in page.read().decode().splitlines():
            if line.startswith("sluice_generation_tokens_total"):
                return float(line.split()[-1])
    return 0


def start_with_unreachable(cluster, closed, holes):
    """Two good workers, and others that can't be reached, which say so or not; returns what must be kept."""
    cluster.start_coordinator()
    for i in range(2):
        cluster.start_worker(f"good-{i}")
    kept = [Hole() for _ in range(holes)]
    for i in range(closed):
        cluster.start_worker(f"closed-{i}", "--advertise", f"127.0.0.1:{harness.free_port()}")
    for i, hole in enumerate(kept):
        cluster.start_worker(f"hole-{i}", "--advertise", f"127.0.0.1:{hole.port}")
    harness.wait_for(lambda: len(state_of(cluster)["workers"]) == 2 + closed + holes, "all workers")
    return kept


def goes_on(closed, holes, disturb):
    lines = harness.mixed_requests(max(60, 600 // harness.SLOW), max_tokens=64)
    expected = harness.answers(harness.run(LLAMA, lines, "--dtype", "float32")[1])
    with harness.Cluster(LLAMA, workers=2, started=False,
                         coordinator_flags=["--dtype", "float32", "--gbs", "4"]) as cluster:
        kept = start_with_unreachable(cluster, closed, holes)
        path = os.path.join(cluster.directory, "in.jsonl")
        harness.write_lines(path, lines)
        job = cluster.submit(path)["id"]
        harness.wait_for(lambda: tokens(cluster) > 0, "a token")
        disturb(cluster)
        state = cluster.wait_for_end(job, 60)
        assert state["status"] == "completed", state
        assert harness.answers(cluster.results(job)) == expected
        # Who can't be reached is named.
        text = cluster.sluice("cluster").stdout
        for i in range(closed):
            assert f"closed-{i}" in text and "can't be reached" in text, text
        del kept


def restart_coordinator(cluster):
    cluster.coordinator.kill9()
    cluster.start_coordinator()


def restart_worker(cluster):
    cluster.workers["good-1"].kill9()
    cluster.start_worker("good-1")


def test_a_coordinator_that_starts_again_finds_those_who_can_work():
    goes_on(2, 2, restart_coordinator)


def test_a_worker_that_starts_again_is_not_mistaken_for_the_unreachable():
    goes_on(3, 1, restart_worker)


if __name__ == "__main__":
    harness.run_tests(sys.modules[__name__])
