"""`sluice profile`, and what a worker does with a profile."""

import functools
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import urllib.request

import harness

LLAMA = os.path.join(harness.MODELS, "llama-kjv")
# These flags measure as little as can be measured.
QUICK = ["--seconds", "0.1", "--host-memory", "128MiB", "--threads", "1"]


SCRATCH = tempfile.TemporaryDirectory(prefix="sluice-e2e-")
directory = SCRATCH.name


def profile(*flags, check=True):
    return harness.sluice("profile", *flags, check=check)


@functools.cache
def measured():
    """The profile's file, what was printed, and the disk directory."""
    disk = os.path.join(directory, "disk")
    path = os.path.join(directory, "node.json")
    done = profile(*QUICK, "--disk-dir", disk, "--disk-space", "32MiB",
                   "--json", "-o", path)
    return path, done, disk


def test_measures_and_writes():
    path, done, disk = measured()
    p = json.loads(done.stdout)
    with open(path) as f:
        assert json.load(f) == p
    assert p["version"] == 1 and p["name"] and p["threads"] == 1
    assert p["host_memory_bytes"] == 128 << 20
    assert p["disk_bytes"] == 32 << 20
    assert p["disk"]["read_bytes_per_second"] > 0
    assert p["host"]["memory_bytes_per_second"] > 0
    assert {"float32"} <= {r["dtype"] for r in p["host"]["products"]}
    assert {"int4", "bfloat16"} <= {r["format"] for r in p["host"]["attention"]}
    assert p["links"][0]["bytes_per_second"] > 0 and p["step_seconds"] > 0
    assert "measuring this machine: 0 %, disk" in done.stderr
    assert os.listdir(disk) == [], "nothing is left, and this is not kept"


def test_shows_and_checks_what_was_edited():
    path = measured()[0]
    table = profile("--show", path).stdout
    assert "memory, read" in table and "GB/s" in table
    with open(path) as f:
        p = json.load(f)
    p["name"] = "the one we mean to buy"
    p["disk"]["read_bytes_per_second"] = 7e9
    edited = os.path.join(directory, "edited.json")
    with open(edited, "w") as f:
        json.dump(p, f)
    assert json.loads(profile("--show", edited, "--json").stdout) == p
    p["disk"]["read_bytes_per_second"] = -1
    with open(edited, "w") as f:
        json.dump(p, f)
    done = profile("--show", edited, check=False)
    assert done.returncode == 2, done
    assert f"{edited}: disk.read_bytes_per_second: -1 must be" in done.stderr
    done = profile("--show", os.path.join(directory, "none"), check=False)
    assert done.returncode == 2 and "none" in done.stderr


def test_wrong_flags_are_named():
    for flags, words in [
        (["--disk-space", "1GiB"], "--disk-space needs a --disk-dir"),
        (["--device", "cpu-discrete"], "--device-memory"),
        (["--device-memory", "1GiB"], "--device-memory"),
        (["--host-memory", "lots"], "--host-memory"),
        (["--device", "abacus"], "abacus"),
        (["--seconds", "0"], "--seconds"),
        (["--cached", "--show", "x"], "--cached"),
    ]:
        done = profile(*flags, check=False)
        assert done.returncode == 2, (flags, done)
        assert words in done.stderr + done.stdout, (flags, done)


def test_a_worker_takes_a_file():
    path = measured()[0]
    with harness.Cluster(LLAMA, workers=1,
                         worker_flags=["--profile", path]) as cluster:
        lines = os.path.join(directory, "in.jsonl")
        harness.write_lines(lines, [json.dumps({"prompt": "In the", "max_tokens": 2})])
        job = cluster.submit(lines)["id"]
        assert cluster.wait_for_end(job)["status"] == "completed"
    wrong = os.path.join(directory, "wrong.json")
    with open(wrong, "w") as f:
        f.write('{"version": 1, "host_memory": 1}')
    done = subprocess.run(
        [os.path.join(harness.BIN, "sluice-worker"), "--model", LLAMA, "--profile", wrong],
        capture_output=True, text=True, timeout=60)
    assert done.returncode == 2, done
    assert "--profile" in done.stderr and "host_memory: no such key" in done.stderr


def test_workers_that_measure_are_visible():
    with harness.Cluster(LLAMA, workers=2, started=False) as cluster:
        cluster.start_coordinator()
        # Nothing of this test is in the cache, so that one measures, and the other one waits for it.
        cache = os.path.join(cluster.directory, "cache")
        for name in ("a", "b"):
            cluster.workers[name] = harness.Process(cluster.directory, name, [
                "env", f"XDG_CACHE_HOME={cache}", os.path.join(harness.BIN, "sluice-worker"), "--model", LLAMA,
                "--coordinator", f"127.0.0.1:{cluster.port}", "--name", name, "--threads", "1",
                "--host-memory", "256MiB", "--port", "0", "--metrics-port", "0"])

        def state():
            return json.loads(cluster.sluice("cluster", "--json").stdout)
        harness.wait_for(lambda: re.search(r"2 workers measure their machines \(\d+ %\)", state()["state"]),
                         "the workers to be seen measuring")
        assert {w["state"] for w in state()["workers"]} == {"measuring"}, state()
        harness.wait_for(lambda: any("waiting while another process measures" in w.log()
                                     for w in cluster.workers.values()), "one to say that it waits")
        harness.wait_for(lambda: any("another process measures" in w["detail"] for w in state()["workers"]),
                         "the cluster to say so")


def test_a_worker_can_be_stopped_while_it_measures():
    cache = os.path.join(directory, "cache")
    worker = subprocess.Popen(
        [os.path.join(harness.BIN, "sluice-worker"), "--model", LLAMA, "--threads", "1",
         "--host-memory", "256MiB", "--port", "0", "--metrics-port", "0"],
        env={**os.environ, "XDG_CACHE_HOME": cache}, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True)
    for line in worker.stderr:
        if "measuring this machine" in line:
            break
    # It is there for those who look after it.
    url = worker.stdout.readline().split("metrics on ")[1].strip()
    assert b"sluice_" in urllib.request.urlopen(url, timeout=60).read()
    worker.send_signal(signal.SIGTERM)
    worker.communicate(timeout=60)
    assert worker.returncode == 0, worker.returncode
    # Nothing is kept of a measurement that did not end.
    assert not [name for name in os.listdir(os.path.join(cache, "sluice")) if "profile" in name]


if __name__ == "__main__":
    harness.run_tests(sys.modules[__name__])
