#!/usr/bin/env python3
"""How fast a worker without the model gets its weights over the loopback.

    bench_fetch.py [--model DIR] [--cache DIR] [--runs N]

One worker of one stage fetches all of the model (or of a random one of 2.7 GB) from a coordinator
that knows its hashes and has it in the page cache, into --cache: /dev/shm, or a disk, whose rate of
writing then binds. Prints for each run the rate, what iperf3 sends over the loopback just after it,
and the processor's seconds for each GB that the coordinator and the worker spent; adds medians with
spread to tests/bench/results/fetch.json, named after the cache. Needs iperf3. Programs are those of
build/release/bin, or of SLUICE_BIN_DIR. Run it on a machine that does nothing else.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
os.environ.setdefault("SLUICE_BIN_DIR", os.path.join(ROOT, "build", "release", "bin"))
sys.path.insert(0, os.path.join(ROOT, "tests", "e2e"))
import harness  # noqa: E402
from machine import machine, record_case  # noqa: E402

SHAPE = ["--hidden", "2048", "--layers", "18", "--heads", "16", "--mlp", "8192",
         "--positions", "512"]


def cpu_seconds(pid):
    with open(f"/proc/{pid}/stat") as f:
        fields = f.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def warm(model):
    for name in os.listdir(model):
        with open(os.path.join(model, name), "rb") as f:
            while f.read(1 << 24):
                pass


def fetch_once(model, cache):
    """(bytes per second, CPU seconds per GB of the coordinator, and of the worker)"""
    with harness.Cluster(model, workers=1, started=False,
                         coordinator_flags=["--dtype", "bfloat16"]) as cluster:
        cluster.start_coordinator()
        # The hashing of a first start leaves nothing in the page cache.
        harness.wait_for(lambda: "checking" not in cluster.sluice("cluster").stdout, "hashes")
        warm(model)
        cluster.model = None
        coordinator = cluster.coordinator.popen.pid
        before = cpu_seconds(coordinator)
        cluster.start_worker("w", "--cache-dir", cache, "--host-memory", "1GiB", "--disk-dir",
                             os.path.join(cluster.directory, "disk"))
        worker = cluster.workers["w"]
        line = harness.wait_for(
            lambda: re.search(r"fetched ([\d.]+) (\wiB) .* in ([\d.]+) s, (\d+) MB/s", worker.log()),
            "the weights", 600)
        size = float(line.group(1)) * {"MiB": 1 << 20, "GiB": 1 << 30}[line.group(2)] / 1e9
        spent = [cpu_seconds(coordinator) - before, cpu_seconds(worker.popen.pid)]
        worker.kill9()
        cluster.workers.clear()
    return int(line.group(4)) * 1e6, spent[0] / size, spent[1] / size


def loopback():
    """What iperf3 sends in bytes per second."""
    port = str(harness.free_port())
    server = subprocess.Popen(["iperf3", "-s", "-1", "-p", port], stdout=subprocess.DEVNULL)
    try:
        def send():
            done = subprocess.run(["iperf3", "-c", "127.0.0.1", "-p", port, "-l", "1M", "-t", "3",
                                   "-J"], capture_output=True, text=True)
            # It may end with 0 and a report of an error, as long as the server does not listen yet.
            end = json.loads(done.stdout).get("end", {}) if done.returncode == 0 else {}
            return "sum_received" in end and end["sum_received"]["bits_per_second"] / 8
        return harness.wait_for(send, "iperf3")
    finally:
        server.kill()
        server.wait()


def measure(model, cache, runs):
    """Name of a figure to its value in each run."""
    figures = {}
    for run in range(runs + 1):  # the first one warms up
        with tempfile.TemporaryDirectory(prefix="sluice-bench-", dir=cache) as directory:
            rate, coordinator, worker = fetch_once(model, directory)
        if run == 0:
            continue
        bound = loopback()
        for name, value in {"GB/s": rate / 1e9, "iperf3 GB/s": bound / 1e9,
                            "share of iperf3": rate / bound,
                            "coordinator, CPU seconds for a GB": coordinator,
                            "worker, CPU seconds for a GB": worker}.items():
            figures.setdefault(name, []).append(value)
        print(f"{rate / 1e6:.0f} MB/s, iperf3 {bound / 1e6:.0f}; CPU seconds for a GB: coordinator "
              f"{coordinator:.2f}, worker {worker:.2f}", flush=True)
    return figures


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--cache", default="/dev/shm")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--result", default=os.path.join(HERE, "results", "fetch.json"))
    a = parser.parse_args()
    info = machine(os.environ["SLUICE_BIN_DIR"], a.cache) if a.result else {}
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as directory:
        model = a.model or os.path.join(directory, "model")
        if not a.model:
            subprocess.run([sys.executable, os.path.join(HERE, "make_random_model.py"), model,
                            *SHAPE], check=True)
        figures = measure(model, a.cache, a.runs)
    summary = {name: {"median": statistics.median(values), "least": min(values),
                      "most": max(values)} for name, values in figures.items()}
    for name, value in summary.items():
        print(f"  {name:36} median {value['median']:8.3f}   {value['least']:8.3f} .. "
              f"{value['most']:8.3f}")
    if a.result:
        record_case(a.result, a.cache, summary, info)


if __name__ == "__main__":
    main()
