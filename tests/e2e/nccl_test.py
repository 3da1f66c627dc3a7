"""NCCL links between real processes, over a stand-in for libnccl and libcuda
(tests/nccl/fake_gpu.cc): the tokens are those of gRPC, whichever stage is
killed, and nothing is left behind."""

import collections
import glob
import json
import os
import subprocess
import sys
import tempfile

import harness
from recovery_test import (LLAMA, check_results, replace_killed, undisturbed, with_enough_work)

FAKE = os.environ.get("SLUICE_FAKE_GPU", "")
NCCL_FLAGS = ("--link", "nccl", "--nccl-library", FAKE, "--cuda-library", FAKE)
STAGES = 3


class NcclCluster(harness.Cluster):
    """Three workers with NCCL links; `counts` has what each fake counted in
    processes that have ended politely."""

    def __init__(self, flags=NCCL_FLAGS, **more):
        super().__init__(LLAMA, workers=STAGES, worker_flags=flags, **more)
        self.counts = []

    def __enter__(self):
        self._stats = tempfile.TemporaryDirectory(prefix="sluice-e2e-nccl-")
        os.environ["SLUICE_FAKE_GPU_STATS"] = self._stats.name
        return super().__enter__()

    def __exit__(self, *exception):
        try:
            super().__exit__(*exception)
            for path in glob.glob(os.path.join(self._stats.name, "*.json")):
                with open(path) as f:
                    self.counts.append(json.load(f))
        finally:
            del os.environ["SLUICE_FAKE_GPU_STATS"]
            self._stats.cleanup()

    def links(self):
        """Returns how each stage hands on, in order."""
        state = json.loads(self.sluice("cluster", "--json").stdout)
        stages = {w["stage"]: w["next_link"] for w in state["workers"]}
        return [stages.get(s) for s in range(STAGES)]

    def run(self, lines):
        path = os.path.join(self.directory, "in.jsonl")
        harness.write_lines(path, lines)
        return self.submit(path)["id"]


def expect_nothing_left(counts, but=()):
    for kind in ("comms", "streams", "events", "allocations", "contexts", "roots"):
        assert counts[kind] == 0 or kind in but, counts


def threads(process):
    """Returns how many threads of each name a process has."""
    found = collections.Counter()
    for path in glob.glob(f"/proc/{process.popen.pid}/task/*/comm"):
        try:
            with open(path) as f:
                found[f.read().strip()] += 1
        except OSError:
            pass  # gone meanwhile
    return found


def descriptors(process):
    return len(os.listdir(f"/proc/{process.popen.pid}/fd"))


def tokens_over(flags, lines, expected):
    with NcclCluster(flags) as cluster:
        job = cluster.run(lines)
        state = cluster.wait_for_end(job)
        assert state["status"] == "completed", state
        check_results(cluster, job, lines, expected)
        links = cluster.links()
    return links, cluster.counts


def test_same_tokens_by_all_transports():
    lines = harness.mixed_requests(80)
    expected = undisturbed(lines)
    links, counts = tokens_over(NCCL_FLAGS, lines, expected)
    assert links == ["nccl", "nccl", ""], links
    assert len(counts) == STAGES, counts
    for each in counts:
        expect_nothing_left(each)
    # A communicator is one at each of its ends.
    assert sum(c["comms_made"] for c in counts) == 4, counts
    # All but the last stage send.
    assert sorted(c["bytes_sent"] > 0 for c in counts) == [False, True, True], counts
    for flags, link in (((), "tcp"), (("--link", "tcp"), "tcp"), (("--link", "grpc"), "grpc")):
        links, counts = tokens_over(flags, lines, expected)
        assert links == [link, link, ""], links
        assert not counts, counts


def kill_each_stage(count):
    lines = harness.mixed_requests(count, max_tokens=64)
    expected = undisturbed(lines)
    with NcclCluster() as cluster:
        job = cluster.run(lines)
        hit = True
        for victim in [f"worker-{i}" for i in range(STAGES)]:
            state = replace_killed(cluster, job, victim)
            hit = hit and state["status"] != "completed"
        state = cluster.wait_for_end(job, 300)
        assert state["status"] == "completed", state
        check_results(cluster, job, lines, expected)
        if hit:
            assert cluster.links() == ["nccl", "nccl", ""], cluster.links()
    if hit:
        assert len(cluster.counts) == STAGES, cluster.counts
        for counts in cluster.counts:
            # A kill between the making of an id and its use leaves the id.
            expect_nothing_left(counts, but=("roots",))
    return hit


def test_each_stage_killed():
    with_enough_work(max(60, 600 // harness.SLOW), kill_each_stage)


def settled(cluster):
    """Descriptors of each worker, once each has just the threads of its links."""
    wanted = {0: (1, 0), 1: (1, 1), 2: (0, 1)}
    state = json.loads(cluster.sluice("cluster", "--json").stdout)
    found = {}
    for worker in state["workers"]:
        if worker["state"] != "ready":
            return None
        process = cluster.workers[worker["name"]]
        names = threads(process)
        ends = (names["nccl-send"], names["nccl-recv"])
        fake = (names["fake-comm"], names["fake-stream"])
        # An end has a stream for transfers and one for the copies of each of its two lanes.
        if ends != wanted[worker["stage"]] or fake != (sum(ends), 3 * sum(ends)):
            return None
        found[worker["name"]] = descriptors(process)
    return len(found) == STAGES and found


def test_epochs_leave_nothing_behind():
    lines = harness.mixed_requests(12, max_tokens=8)
    expected = undisturbed(lines)
    with NcclCluster() as cluster:
        first = None
        for _ in range(6):
            # The last stage goes and comes; the others get new epochs.
            job = cluster.run(lines)
            assert cluster.wait_for_end(job)["status"] == "completed"
            check_results(cluster, job, lines, expected)
            found = harness.wait_for(lambda: settled(cluster),
                                     "the threads of one epoch")
            first = first or found
            # gRPC keeps a few more or less; an epoch that was not given back
            # would have ten for each end.
            for name in ("worker-0", "worker-1"):
                assert found[name] < first[name] + 10, (first, found)
            cluster.workers["worker-2"].kill9()
            cluster.start_worker("worker-2")
        harness.wait_for(lambda: settled(cluster), "the last epoch")
    for counts in cluster.counts:
        expect_nothing_left(counts)
    # Each epoch of worker-1 had two ends.
    assert max(c["comms_made"] for c in cluster.counts) >= 12, cluster.counts


def expect_refused(flags, code, *words):
    done = subprocess.run(
        [os.path.join(harness.BIN, "sluice-worker"), "--model", LLAMA,
         "--no-profile", "--host-memory", "512MiB", *flags],
        capture_output=True, text=True, timeout=60 * harness.SLOW)
    assert done.returncode == code, (done.returncode, done.stderr)
    for word in words:
        assert word in done.stderr, (word, done.stderr)


def test_nccl_that_is_not_there():
    missing = "/nowhere/libnccl.so.2"
    expect_refused(("--link", "nccl", "--nccl-library", missing,
                    "--cuda-library", FAKE), 1, "--link nccl", missing)
    expect_refused(("--link", "nccl", "--nccl-library", FAKE,
                    "--cuda-library", "/nowhere/libcuda.so.1"), 1,
                   "--link nccl", "CUDA driver", "/nowhere/libcuda.so.1")
    expect_refused(("--link", "mpi"), 2, "--link")


def test_worker_that_insists_beside_one_that_has_none():
    lines = harness.mixed_requests(10, max_tokens=8)
    expected = undisturbed(lines)
    with harness.Cluster(LLAMA, workers=2) as cluster:
        cluster.start_worker("worker-2", *NCCL_FLAGS)
        path = os.path.join(cluster.directory, "in.jsonl")
        harness.write_lines(path, lines)
        job = cluster.submit(path)["id"]
        # It sits out, and says why; the others do the work.
        assert cluster.wait_for_end(job)["status"] == "completed"
        check_results(cluster, job, lines, expected)
        state = json.loads(cluster.sluice("cluster", "--json").stdout)
        workers = {w["name"]: w for w in state["workers"]}
        assert workers["worker-2"]["state"] == "failed", workers
        assert "was started with --link nccl" in workers["worker-2"]["detail"], workers
        assert workers["worker-0"]["next_link"] + workers["worker-1"]["next_link"] == "tcp"


def test_two_workers_on_one_gpu():
    os.environ["SLUICE_FAKE_GPU_UUID"] = "only-one"
    try:
        with harness.Cluster(LLAMA, workers=2, worker_flags=NCCL_FLAGS) as cluster:
            path = os.path.join(cluster.directory, "in.jsonl")
            harness.write_lines(path, harness.mixed_requests(2))
            job = cluster.submit(path)["id"]
            state = harness.wait_for(
                lambda: "both are on GPU-" in (s := cluster.status(job))["detail"] and s,
                "the reason why nothing moves")
            assert "--link nccl" in state["detail"], state
            cluster.sluice("cancel", job)
    finally:
        del os.environ["SLUICE_FAKE_GPU_UUID"]


if __name__ == "__main__":
    harness.run_tests(sys.modules[__name__])
