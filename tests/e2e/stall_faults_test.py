"""A bad worker never stops good ones: real processes, with faults of seeded
random kinds and moments. The job ends by itself, with the answers of an
undisturbed run.

By hand, many of one kind, with the time from each fault to the job going on:
  stall_faults_test.py --runs 20 --seed 1 [--kind frozen]
"""

import argparse
import ctypes
import json
import os
import random
import re
import subprocess
import sys
import time
import urllib.request

import harness
from recovery_test import LLAMA, check_results, undisturbed

STALL = 3 * harness.SLOW  # seconds, as the coordinator is told
SILENCE = 6 * harness.SLOW
FLAGS = ("--stall-timeout", str(STALL), "--heartbeat-timeout", str(SILENCE),
         "--gbs", "4")
REQUESTS = max(60, 240 // harness.SLOW)
_expected = {}


def job_lines():
    lines = harness.mixed_requests(REQUESTS, max_tokens=48)
    if not _expected:
        _expected.update(undisturbed(lines))
    return lines


# -- One thread of a process, stopped while the others go on: as by a disk or a
#    device that hangs.

PTRACE_DETACH, PTRACE_SEIZE, PTRACE_INTERRUPT = 17, 0x4206, 0x4207
_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p,
                         ctypes.c_void_p]
_libc.ptrace.restype = ctypes.c_long


def _ptrace(request, tid):
    if _libc.ptrace(request, tid, None, None) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"ptrace {request:#x} {tid}: {os.strerror(error)}")


class Frozen:
    """The thread `name` of a process does not run until thaw()."""

    def __init__(self, process, name):
        self.tid = harness.wait_for(lambda: self._find(process.popen.pid, name),
                                    f"thread {name} of {process.name}")
        try:
            _ptrace(PTRACE_SEIZE, self.tid)
        except PermissionError as error:
            raise harness.Skipped(f"threads can't be stopped here: {error}")
        _ptrace(PTRACE_INTERRUPT, self.tid)
        os.waitpid(self.tid, 0x40000000)  # __WALL

    @staticmethod
    def _find(pid, name):
        for tid in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{tid}/comm") as f:
                if f.read().strip() == name:
                    return int(tid)
        return None

    def thaw(self):
        _ptrace(PTRACE_DETACH, self.tid)


# -- A job on a cluster, while faults happen.

class Run:
    def __init__(self, cluster):
        self.cluster = cluster
        path = os.path.join(cluster.directory, "in.jsonl")
        self.lines = job_lines()
        harness.write_lines(path, self.lines)
        self.job = cluster.submit(path)["id"]
        harness.wait_for(lambda: self.tokens() > 0, "the first token")

    def tokens(self):
        with urllib.request.urlopen(self.cluster.metrics_url, timeout=60) as f:
            text = f.read().decode()
        return float(re.search(r"^sluice_generation_tokens_total (\S+)", text,
                               re.M).group(1))

    def state(self):
        return json.loads(self.cluster.sluice("cluster", "--json").stdout)

    def over(self):
        return self.cluster.status(self.job)["status"] == "completed"

    def absent(self, name, part, kinds=("left_out",)):
        """Waits until the cluster tells why it goes without `name`."""
        def look():
            for absent in self.state()["absent"]:
                if (absent["name"] == name and absent["kind"] in kinds
                        and part in absent["reason"]):
                    return absent
            return None
        return harness.wait_for(look, f"{name} to be {kinds}: {part}", 180)

    def goes_on(self, epoch):
        """Waits for a token, or the end, of a plan after `epoch`."""
        def look():
            if self.over():
                return True
            if self.state()["epoch"] <= epoch:
                return False
            before = self.tokens()
            time.sleep(0.05)
            return self.tokens() > before
        harness.wait_for(look, "the job to go on", 180)

    def check(self):
        state = self.cluster.wait_for_end(self.job, 600)
        assert state["status"] == "completed", state
        check_results(self.cluster, self.job, self.lines, _expected)


def cluster_of(workers, minimum, flags=FLAGS):
    cluster = harness.Cluster(LLAMA, workers=minimum, coordinator_flags=flags)
    cluster.__enter__()
    for i in range(minimum, workers):
        cluster.start_worker(f"worker-{i}")

    def all_ready():
        state = json.loads(cluster.sluice("cluster", "--json").stdout)
        ready = [w for w in state["workers"] if w["state"] == "ready"]
        return len(ready) == workers
    harness.wait_for(all_ready, f"{workers} workers to be ready")
    return cluster


def with_cluster(workers, minimum, body, flags=FLAGS):
    cluster = cluster_of(workers, minimum, flags)
    try:
        result = body(cluster)
    except BaseException:
        cluster.__exit__(*sys.exc_info())
        raise
    cluster.__exit__(None, None, None)
    return result


# -- The faults. Each returns the seconds from the fault to the job going on.

def frozen(rng):
    """The compute thread of a stage hangs; its heartbeats go on."""
    def body(cluster):
        run = Run(cluster)
        time.sleep(rng.uniform(0, 0.5))
        victim = f"worker-{rng.randrange(3)}"
        epoch = run.state()["epoch"]
        start = time.monotonic()
        freeze = Frozen(cluster.workers[victim], "compute")
        run.goes_on(epoch)
        seconds = time.monotonic() - start
        if not run.over():
            # A thread that is stopped with a lock in its hand takes the
            # heartbeats with it; else it is known what stands still.
            run.absent(victim, "", ("left_out", "lost"))
        run.check()
        freeze.thaw()
        return seconds
    return with_cluster(3, 2, body)


def stalled_loader(rng):
    """A worker joins, and its loading never moves; the plan that runs does not
    notice."""
    def body(cluster):
        run = Run(cluster)
        epoch = run.state()["epoch"]
        time.sleep(rng.uniform(0, 0.5))
        cluster.start_worker("joiner")
        freeze = Frozen(cluster.workers["joiner"], "compute")
        state = run.state()
        prepared = state["epoch"] > epoch  # it was faster than the freezer
        start = time.monotonic()
        if prepared:
            run.goes_on(state["epoch"])
        else:
            run.absent("joiner", "stands still", ("left_out", "lost"))
            assert run.state()["epoch"] == epoch, run.state()
        seconds = time.monotonic() - start
        run.check()
        freeze.thaw()
        return seconds
    return with_cluster(2, 2, body)


def unreachable(rng):
    """A worker joins that others cannot reach; the plan that runs does not
    notice."""
    def body(cluster):
        run = Run(cluster)
        epoch = run.state()["epoch"]
        time.sleep(rng.uniform(0, 0.5))
        start = time.monotonic()
        # Its name comes behind all others, so that it is the far end of a link.
        cluster.start_worker("x-joiner", "--advertise", "127.0.0.1:1")
        run.absent("x-joiner", "127.0.0.1:1")
        seconds = time.monotonic() - start
        assert run.state()["epoch"] == epoch, run.state()
        status = cluster.status(run.job)
        assert (status["status"] == "completed"
                or "goes on without worker 'x-joiner'" in status["detail"]), status
        run.check()
        return seconds
    return with_cluster(2, 2, body)


def stopped(rng):
    """SIGSTOP of a whole worker."""
    def body(cluster):
        run = Run(cluster)
        time.sleep(rng.uniform(0, 0.5))
        victim = cluster.workers[f"worker-{rng.randrange(3)}"]
        epoch = run.state()["epoch"]
        start = time.monotonic()
        os.kill(victim.popen.pid, 19)
        try:
            run.goes_on(epoch)
            seconds = time.monotonic() - start
            run.check()
        finally:
            os.kill(victim.popen.pid, 18)
        return seconds
    return with_cluster(3, 2, body)


def _ip(*args):
    done = subprocess.run(["ip", *args], capture_output=True, text=True)
    if done.returncode != 0:
        raise harness.Skipped(f"ip {' '.join(args)}: {done.stderr.strip()}")


def black_hole(rng):
    """The network of a worker swallows everything, without a word."""
    tag = f"{os.getpid() % 10000}"
    space, ours, theirs = f"sl{tag}", f"sla{tag}", f"slb{tag}"
    _ip("netns", "add", space)
    try:
        _ip("link", "add", ours, "type", "veth", "peer", "name", theirs)
        _ip("link", "set", theirs, "netns", space)
        _ip("address", "add", "10.77.9.1/24", "dev", ours)
        _ip("link", "set", ours, "up")
        _ip("-n", space, "address", "add", "10.77.9.2/24", "dev", theirs)
        _ip("-n", space, "link", "set", theirs, "up")
        _ip("-n", space, "link", "set", "lo", "up")
        return _black_hole(rng, space, ours)
    finally:
        subprocess.run(["ip", "netns", "del", space], check=False)
        subprocess.run(["ip", "link", "del", ours], check=False,
                       capture_output=True)


OPEN = ("--host", "0.0.0.0", "--insecure-listen")


def _black_hole(rng, space, ours):
    cluster = harness.Cluster(
        LLAMA, workers=2, coordinator_flags=(*FLAGS, *OPEN),
        worker_flags=(*OPEN, "--advertise", "10.77.9.1"))
    with cluster:
        far = harness.Process(cluster.directory, "far", [
            "ip", "netns", "exec", space,
            os.path.join(harness.BIN, "sluice-worker"), "--model", LLAMA,
            "--coordinator", f"10.77.9.1:{cluster.port}", "--name", "far",
            "--threads", "1", "--host-memory", "512MiB", "--metrics-port", "0",
            "--no-profile", *OPEN, "--advertise", "10.77.9.2"])
        cluster.workers["far"] = far
        harness.wait_for(
            lambda: sum(w["state"] == "ready" for w in json.loads(
                cluster.sluice("cluster", "--json").stdout)["workers"]) == 3,
            "all workers to be ready")
        run = Run(cluster)
        time.sleep(rng.uniform(0, 0.5))
        epoch = run.state()["epoch"]
        start = time.monotonic()
        _ip("link", "set", ours, "down")
        run.goes_on(epoch)
        seconds = time.monotonic() - start
        run.check()
        _ip("link", "set", ours, "up")
        return seconds


KINDS = {"frozen": frozen, "stalled_loader": stalled_loader,
         "unreachable": unreachable, "stopped": stopped,
         "black_hole": black_hole}


def test_a_compute_thread_that_hangs_is_replaced():
    frozen(random.Random(1))


def test_a_joiner_whose_loading_stands_still_is_left_out():
    stalled_loader(random.Random(2))


def test_a_joiner_that_cannot_be_reached_is_left_out():
    unreachable(random.Random(3))


def test_a_worker_in_a_black_hole_is_replaced():
    black_hole(random.Random(4))


def test_a_name_that_nobody_knows_is_refused_with_the_remedy():
    with harness.Cluster(LLAMA, workers=1, coordinator_flags=FLAGS) as cluster:
        cluster.start_worker("lost", "--advertise", "no-such-host.invalid:7072")

        def refused():
            state = json.loads(cluster.sluice("cluster", "--json").stdout)
            return next((a for a in state["absent"] if a["name"] == "lost"), None)
        absent = harness.wait_for(refused, "the refusal", 120)
        assert absent["kind"] == "refused", absent
        assert "can't be resolved" in absent["reason"], absent
        assert "--advertise" in absent["reason"], absent
        harness.wait_for(
            lambda: "can't be resolved" in cluster.workers["lost"].log(),
            "the worker to say so", 120)
        text = cluster.sluice("cluster").stdout
        assert re.search(r"lost +refused .* ago", text), text


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kind", choices=KINDS, action="append")
    args = parser.parse_args()
    for kind in args.kind or KINDS:
        times = []
        for i in range(args.runs):
            times.append(KINDS[kind](random.Random(args.seed + i)))
            print(f"{kind} seed {args.seed + i}: {times[-1]:.1f} s", flush=True)
        times.sort()
        print(f"{kind}: {len(times)} runs, min {times[0]:.1f} s, median "
              f"{times[len(times) // 2]:.1f} s, max {times[-1]:.1f} s", flush=True)


if __name__ == "__main__":
    if any(a.startswith("--") for a in sys.argv[1:]):
        main()
    else:
        harness.run_tests(sys.modules[__name__])
