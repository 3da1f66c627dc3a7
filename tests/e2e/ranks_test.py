"""Stages of several ranks, tensor parallel: the tokens are those of one rank, in
`sluice run` and over real processes."""

import glob
import json
import os
import subprocess
import sys
import tempfile

import harness
import plan_test

LLAMA = os.path.join(harness.MODELS, "llama-kjv")
OPT = os.path.join(harness.MODELS, "opt-kjv")
FAKE = os.environ.get("SLUICE_FAKE_GPU", "")
NCCL = ("--link", "nccl", "--nccl-library", FAKE, "--cuda-library", FAKE)
DEVICE = ("--device", "cpu-discrete", "--device-memory", "64MiB")


def check_equal(model, flags):
    lines = harness.mixed_requests(24)
    common = ("--dtype", "float32", "--gbs", "4", "--max-step-tokens", "37", *flags)
    figures, results = harness.run(model, lines, *common)
    assert figures["completed"] == len(lines), figures
    base = harness.answers(results)
    for ranks, workers in ((2, 1), (4, 1), (2, 2)):
        figures, results = harness.run(
            model, lines, *common, "--tensor-parallel", str(ranks), "--workers", str(workers))
        assert figures["completed"] == len(lines), figures
        assert harness.answers(results) == base, (ranks, workers)


def test_llama_over_cores():
    check_equal(LLAMA, ())


def test_opt_over_cores():
    check_equal(OPT, ())


def test_llama_over_devices():
    check_equal(LLAMA, DEVICE)


def test_tiers_of_each_rank():
    with tempfile.TemporaryDirectory(prefix="sluice-e2e-") as disk:
        check_equal(LLAMA, ("--disk-dir", disk, "--policy", "w=0/50/50,c=0/50/50"))
        check_equal(OPT, (*DEVICE, "--disk-dir", disk, "--policy", "w=30/40/30,c=30/30/40"))


def over_processes(lines, flags, coordinator_flags=()):
    with harness.Cluster(LLAMA, workers=2, worker_flags=flags, coordinator_flags=coordinator_flags) as cluster:
        path = os.path.join(cluster.directory, "in.jsonl")
        harness.write_lines(path, lines)
        job = cluster.submit(path)["id"]
        state = cluster.wait_for_end(job)
        assert state["status"] == "completed", state
        return harness.answers(cluster.results(job))


def test_real_processes():
    lines = harness.mixed_requests(24)
    base = over_processes(lines, ())
    assert over_processes(lines, ("--tensor-parallel", "2")) == base
    assert over_processes(lines, (*DEVICE, "--tensor-parallel", "2")) == base


def test_exchange_by_nccl():
    """Over a stand-in for libnccl and libcuda (tests/nccl/fake_gpu.cc)."""
    lines = harness.mixed_requests(16)
    base = over_processes(lines, ())
    with tempfile.TemporaryDirectory(prefix="sluice-e2e-") as stats:
        os.environ["SLUICE_FAKE_GPU_STATS"] = stats
        os.environ["SLUICE_FAKE_GPU_COUNT"] = "4"
        try:
            for ranks in (2, 4):
                assert over_processes(lines, (*NCCL, *DEVICE, "--tensor-parallel", str(ranks))) == base, ranks
        finally:
            del os.environ["SLUICE_FAKE_GPU_STATS"], os.environ["SLUICE_FAKE_GPU_COUNT"]
        counts = []
        for path in glob.glob(os.path.join(stats, "*.json")):
            with open(path) as f:
                counts.append(json.load(f))
    assert len(counts) == 4, counts
    for count in counts:
        assert count["gathers"] > 0, count
        for kind in ("comms", "streams", "events", "allocations", "contexts"):
            assert count[kind] == 0, count


def test_the_plan_says_how_many_ranks():
    """A worker that may have one or two ranks has as many as its profile makes worth it; the tokens are the same."""
    lines = harness.mixed_requests(24)
    base = over_processes(lines, ())
    # Of a machine so slow that products are what counts, even of a small model.
    host = dict(plan_test.PROFILE["host"])
    host["products"] = [{**product, "flops_by_rows": [[rows, rate / 1000] for rows, rate in product["flops_by_rows"]]}
                        for product in host["products"]]
    with tempfile.TemporaryDirectory(prefix="sluice-e2e-") as directory:
        for share, rate, ranks in ((1, 1e11, 2), (0.5, 1e6, 1)):
            profile = os.path.join(directory, f"{ranks}.json")
            with open(profile, "w") as f:
                json.dump({**plan_test.PROFILE, "host": host, "rank_choices": [
                    {"ranks": 2, "memory_share": share, "product_share": share,
                     "exchange": {"bytes_per_second": rate, "latency_seconds": 1e-7}}]}, f)
            flags = ("--profile", profile, "--tensor-parallel", "auto:2")
            for replicas in ("1", "2"):
                with harness.Cluster(LLAMA, workers=2, worker_threads=2, worker_flags=flags,
                                     coordinator_flags=("--dtype", "float32", "--replicas", replicas)) as cluster:
                    path = os.path.join(cluster.directory, "in.jsonl")
                    harness.write_lines(path, lines)
                    job = cluster.submit(path)["id"]
                    state = cluster.wait_for_end(job)
                    assert state["status"] == "completed", state
                    assert harness.answers(cluster.results(job)) == base, (ranks, replicas)
                    text = json.dumps(state)
                    assert f"tensor-parallel={ranks}" in text, text
                    assert f"tensor-parallel={3 - ranks}" not in text, text
            # The command prints the choice, and why.
            plan = ("plan", "--model", LLAMA, "--dtype", "float32", "--lengths", "64:16:50", "--profile", profile)
            text = harness.sluice(*plan).stdout
            assert ("weights stay with their ranks" in text) == (ranks == 2), text
            assert f"tensor-parallel={3 - ranks}" in text.split("other tensor parallel groups")[1], text
            # The frontier's fastest point is as fast as that.
            best = json.loads(harness.sluice(*plan, "--json").stdout)["tokens_per_second"]
            frontier = json.loads(harness.sluice(*plan, "--frontier", "--json").stdout)
            assert max(point["tokens_per_second"] for point in frontier) > 0.95 * best, (best, frontier)


def test_a_policy_names_the_ranks():
    """Of workers that may have up to four ranks, on emulated devices; and of two of four fake GPUs' ends of NCCL."""
    lines = harness.mixed_requests(16)
    base = over_processes(lines, ())
    flags = (*DEVICE, "--tensor-parallel", "auto:4")
    for ranks in (1, 2, 4):
        assert over_processes(lines, flags, ("--policy", f"tensor-parallel={ranks}")) == base, ranks
    os.environ["SLUICE_FAKE_GPU_COUNT"] = "4"
    try:
        assert over_processes(lines, (*NCCL, *flags), ("--policy", "tensor-parallel=2")) == base
    finally:
        del os.environ["SLUICE_FAKE_GPU_COUNT"]


def test_the_worker_measures_its_ranks():
    done = harness.sluice("profile", "--seconds", "0.5", "--threads", "2", "--host-memory", "256MiB",
                          "--tensor-parallel", "auto:4", "--json")
    choices = json.loads(done.stdout)["rank_choices"]
    assert [choice["ranks"] for choice in choices] == [2, 4], choices
    for choice in choices:
        assert choice["exchange"]["bytes_per_second"] > 0, choice
        assert 0 < choice["product_share"] <= 1, choice


def test_what_cannot_be_is_said():
    for flags, why in (
            (("--tensor-parallel", "auto:x"), "auto:N"),
            (("--tensor-parallel", "automatic"), "auto:N"),
            (("--tensor-parallel", "0"), "--tensor-parallel"),
            (("--tensor-parallel", "65"), "--tensor-parallel"),
            (("--device", "cpu,cpu"), "--tensor-parallel 2"),
            (("--device", "cuda:0,"), '--device: no device ""'),
            (("--tensor-parallel", "2.5"), "a number of ranks, 1 to 64"),
            (("--device", "cpu,cuda"), "of one kind")):
        done = subprocess.run(
            [os.path.join(harness.BIN, "sluice-worker"), "--model", LLAMA, *flags],
            capture_output=True, text=True, timeout=60 * harness.SLOW)
        assert done.returncode != 0, (flags, done)
        assert why in done.stderr, (flags, done.stderr)


def test_more_ranks_than_threads_are_said():
    lines = harness.mixed_requests(4)
    with tempfile.TemporaryDirectory(prefix="sluice-e2e-") as directory:
        source = os.path.join(directory, "in.jsonl")
        harness.write_lines(source, lines)
        done = harness.sluice("run", "--model", LLAMA, "-i", source, "-o", os.path.join(directory, "out.jsonl"),
                              "--host-memory", "1GiB", "--tensor-parallel", "2", "--threads", "1")
        assert "--tensor-parallel 2 with 1 thread" in done.stderr, done.stderr


if __name__ == "__main__":
    harness.run_tests(sys.modules[__name__])
