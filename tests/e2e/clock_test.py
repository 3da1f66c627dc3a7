"""Somebody sets the wall clock, hours back or years on: work goes on, and nobody
waits by it. The programs run with clock_shim preloaded, since a test can't set
the machine's clock."""

import json
import os
import random
import struct
import sys
import tempfile
import time

import harness

LLAMA = os.path.join(harness.MODELS, "llama-kjv")
HOUR = 3600
YEAR = 365 * 24 * HOUR


class Clock:
    """The wall clock of the programs that launcher() starts."""

    def __init__(self):
        self._file = tempfile.NamedTemporaryFile(prefix="sluice-clock-")
        self.set(0)

    def launcher(self):
        return ["env", f"LD_PRELOAD={os.environ['SLUICE_CLOCK_SHIM']}",
                f"SLUICE_TEST_CLOCK={self._file.name}"]

    def set(self, seconds):
        self._file.seek(0)  # in place: it is mapped
        self._file.write(struct.pack("q", seconds))
        self._file.flush()


def ready_workers(cluster):
    done = cluster.sluice("cluster", "--json", check=False)
    if done.returncode != 0:  # the coordinator is not there yet
        return 0
    return [worker["state"] for worker in json.loads(done.stdout)["workers"]].count("ready")


def test_a_worker_attaches_again_though_its_clock_was_set_back():
    clock = Clock()
    with harness.Cluster(LLAMA, workers=1, launcher=clock.launcher()) as cluster:
        cluster.launcher = []  # the coordinator's clock stays right
        harness.wait_for(lambda: ready_workers(cluster) == 1, "the worker to attach")
        cluster.coordinator.kill9()
        harness.wait_for(lambda: "can't attach" in cluster.workers["worker-0"].log(),
                         "the worker to miss its coordinator")
        clock.set(-HOUR)  # while it waits to try again
        cluster.start_coordinator()
        harness.wait_for(lambda: ready_workers(cluster) == 1,
                         "the worker to attach again")


def test_a_job_goes_on_whatever_the_clocks_say():
    clocks = [Clock(), Clock()]
    rng = random.Random(8)

    def attempt(count):
        lines = harness.mixed_requests(count, max_tokens=64)
        expected = harness.answers(harness.run(LLAMA, lines)[1])
        with harness.Cluster(LLAMA, workers=1, launcher=clocks[0].launcher()) as cluster:
            cluster.launcher = clocks[1].launcher()
            cluster.start_worker("other")
            harness.wait_for(lambda: ready_workers(cluster) == 2, "both workers")
            path = os.path.join(cluster.directory, "in.jsonl")
            harness.write_lines(path, lines)
            job = cluster.submit(path)["id"]
            for shift in (-HOUR, 10 * YEAR, HOUR, -YEAR, 0):
                rng.choice(clocks).set(shift)
                time.sleep(0.2)
            running = cluster.status(job)["status"] == "in_progress"
            assert cluster.wait_for_end(job)["status"] == "completed"
            assert harness.answers(cluster.results(job)) == expected
            assert "worker gone" not in cluster.coordinator.log()
        return running

    count = max(40, 400 // harness.SLOW)
    while not attempt(count):  # the job was over too soon: machines differ
        count *= 3
        assert count < 100_000, "the clocks were never set while the job ran"


if __name__ == "__main__":
    harness.run_tests(sys.modules[__name__])
