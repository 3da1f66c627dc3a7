"""A coordinator that lacks something: room on its disk, its log, memory, threads;
and one to which much comes at once."""

import json
import os
import re
import resource
import socket
import subprocess
import sys
import tempfile
import threading
import urllib.error
import urllib.request

import harness
from disk_faults_test import Disk, in_own_mounts
from harness import BIN

LLAMA = os.path.join(harness.MODELS, "llama-kjv")


class Coordinator(harness.Cluster):
    """A coordinator without workers, whose state lies in `state`."""

    def __init__(self, state=None):
        super().__init__(LLAMA, workers=1)
        if state:
            os.makedirs(state)
            os.symlink(state, os.path.join(self.directory, "state"))

    def __enter__(self):
        self.start_coordinator()
        return self


def fill(directory):
    """Takes all room but what others hold; returns the file's path."""
    path = os.path.join(directory, "filler")
    with open(path, "wb", buffering=0) as f:
        size = 1 << 20
        while size:
            try:
                if f.write(b"x" * size) == size:
                    continue
            except OSError:
                pass
            size //= 2
    return path


def submit_lines(cluster, lines, *flags):
    path = os.path.join(cluster.directory, "in.jsonl")
    harness.write_lines(path, lines)
    return cluster.submit(path, *flags)["id"]


def bad_lines(count, length=400):
    return [json.dumps({"prompt": 1, "user": "x" * length})] * count  # ends at once, with results


def test_jobs_are_deleted_on_a_full_disk():
    with Disk("32m") as disk:
        state = os.path.join(disk.path, "state")
        with Coordinator(state) as cluster:
            jobs = [submit_lines(cluster, bad_lines(8000)) for _ in range(3)]
            filler = fill(disk.path)
            database = os.path.join(state, "sluice.db")
            before = os.path.getsize(database)
            for job in jobs[:2]:
                cluster.sluice("delete", job)
            # The room comes back, and with it others can write.
            harness.wait_for(lambda: os.path.getsize(database) < before - (2 << 20),
                             "the database to shrink")
            assert len(json_lines(cluster, "list", "--json")) == 1
            submit_lines(cluster, bad_lines(100))
            # When the disk is full again, the coordinator starts, and goes on where it was.
            fill(state)
            cluster.coordinator.kill9()
            cluster.start_coordinator()
            for job in json_lines(cluster, "list", "--json"):
                cluster.sluice("delete", job["id"])
            assert json_lines(cluster, "list", "--json") == []
            os.unlink(filler)
            os.unlink(os.path.join(state, "filler"))
            harness.wait_for(lambda: os.path.getsize(database) < 1 << 20,
                             "the database to shrink")


def json_lines(cluster, *args):
    return [json.loads(line) for line in cluster.sluice(*args).stdout.splitlines()]


def test_a_waiting_job_is_cancelled_and_deleted_on_a_full_disk():
    with Disk("32m") as disk:
        with Coordinator(os.path.join(disk.path, "state")) as cluster:
            job = submit_lines(cluster, harness.mixed_requests(3000))
            fill(disk.path)
            cluster.sluice("cancel", job)
            cluster.wait_for_end(job)
            cluster.sluice("delete", job)
            assert json_lines(cluster, "list", "--json") == []


def test_lost_jobs_are_said_at_the_start():
    with tempfile.TemporaryDirectory() as directory:
        state = os.path.join(directory, "state")
        with Coordinator(state) as cluster:
            submit_lines(cluster, bad_lines(3))
            cluster.coordinator.kill9()
            os.unlink(os.path.join(state, "sluice.db-wal"))
            args = cluster.coordinator.popen.args
            done = subprocess.run(args, capture_output=True, text=True, timeout=60)
            assert done.returncode == 1, done
            last = done.stderr.splitlines()[-1]
            for word in ("jobs are missing", "says that 1 were accepted", "knows of 0",
                         "sluice.db-wal", "delete sluice.accepted"):
                assert word in last, done.stderr
            os.unlink(os.path.join(state, "sluice.accepted"))
            cluster.start_coordinator()
            assert json_lines(cluster, "list", "--json") == []


def test_refused_memory_or_threads_are_one_sentence():
    if harness.SANITIZED:
        return
    with tempfile.TemporaryDirectory() as directory:
        args = [os.path.join(BIN, "sluice-coordinator"), "--model", LLAMA, "--state-dir",
                os.path.join(directory, "state"), "--port", "0", "--metrics-port", "0"]
        said = []
        for megabytes in (300, 400, 600, 800, 1000, 1500, 4000):
            def limit():
                limit_bytes = megabytes << 20
                resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, limit_bytes))
            with open(os.path.join(directory, "log"), "w+") as log:
                process = subprocess.Popen(args, preexec_fn=limit, stdout=subprocess.PIPE,
                                           stderr=log, text=True)
                line = process.stdout.readline()  # or the end
                if line:
                    assert "listening" in line
                    process.terminate()
                code = process.wait(60)
                log.seek(0)
                text = log.read()
            if line:
                assert code == 0, (megabytes, code, text)
                said.append(True)
            else:
                assert code == 1, (megabytes, code, text)
                assert "ulimit -v" in text.splitlines()[-1], text
                said.append(False)
        assert not said[0] and said[-1], said


def test_eight_uploads_of_a_long_line_take_little_memory():
    with Coordinator() as cluster:
        path = os.path.join(cluster.directory, "long.jsonl")
        with open(path, "w") as f:
            f.write(json.dumps({"prompt": "And it came to pass 12 😀! " * (14_000_000 // 30)},
                               ensure_ascii=False) + "\n")
        assert os.path.getsize(path) > 13_000_000
        submits = [threading.Thread(target=cluster.submit, args=(path,)) for _ in range(8)]
        for thread in submits:
            thread.start()
        for thread in submits:
            thread.join()
        jobs = json_lines(cluster, "list", "--json")
        assert len(jobs) == 8
        for job in jobs:
            assert job["request_counts"]["failed"] == 1, job
        assert "prompt_too_long" in cluster.sluice("results", jobs[0]["id"], check=False).stdout
        peak = cluster.coordinator.peak_rss_mb()
        print(f"        peak {peak:.0f} MB")
        if not harness.SANITIZED:
            assert peak < 300, peak


def test_half_requests_do_not_keep_metrics_from_others():
    with Coordinator() as cluster:
        host, port = re.search(r"//([^:/]+):(\d+)", cluster.metrics_url).groups()
        half = []
        for _ in range(200):
            connection = socket.create_connection((host, int(port)))
            connection.sendall(b"GET /metrics HT")
            half.append(connection)
        for path, code in (("metrics", 200), ("healthz", 200), ("", 200), ("readyz", 503)):
            try:
                answer = urllib.request.urlopen(f"http://{host}:{port}/{path}", timeout=30)
            except urllib.error.HTTPError as error:
                answer = error
            assert answer.status == code, (path, answer.status)
        for connection in half:
            connection.close()


if __name__ == "__main__":
    in_own_mounts()
    harness.run_tests(sys.modules[__name__])
