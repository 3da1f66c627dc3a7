"""Programs that are asked to stop (SIGINT, SIGTERM) at any moment: each ends soon, with the right exit
code, crashes never and leaves nothing behind.

    python3 stops_test.py --rounds 1000 [--seed 7] [TEST...]    # more stops, at other moments
"""

import collections
import fcntl
import os
import random
import shutil
import signal
import subprocess
import sys
import time

import harness

LLAMA = os.path.join(harness.MODELS, "llama-kjv")
MACHINE = ("--host-memory", "512MiB", "--threads", "1")
FLAGS = (*MACHINE, "--dtype", "float32", "--gbs", "4")
SIGNALS = (signal.SIGINT, signal.SIGTERM)
# No machine is so busy that an end takes so long; shorter than a worker's --leave-timeout.
DEADLINE = 20 * harness.SLOW
# A run to its end has taken 46 s beside twelve busy processes.
WHOLE_RUN = 120 * harness.SLOW


def option(name, default):
    if name not in sys.argv:
        return default
    at = sys.argv.index(name)
    value = int(sys.argv[at + 1])
    del sys.argv[at:at + 2]
    return value


SEED = option("--seed", 1)
ROUNDS = option("--rounds", 12)


class Stops:
    """Counts how programs end, and how long it takes them at most."""

    def __init__(self, what):
        self.what = what
        self.codes = collections.Counter()
        self.longest = 0

    def stop(self, process, number, again=None):
        """Sends the signal, and after `again` seconds, if given, another one. Returns the exit code."""
        process.send_signal(number)
        asked = time.monotonic()
        if again is not None:
            time.sleep(again)
            process.send_signal(number)
        try:
            code = process.wait(DEADLINE)
        except subprocess.TimeoutExpired:
            process.kill()
            raise AssertionError(f"{self.what} did not end on {number.name}")
        if again is None:
            self.longest = max(self.longest, time.monotonic() - asked)
        self.codes[code] += 1
        return code

    def report(self):
        counts = ", ".join(f"{code}: {n}" for code, n in sorted(self.codes.items()))
        print(f"        {self.what}: {sum(self.codes.values())} stops; exit codes {counts}; "
              f"longest {self.longest:.2f} s", flush=True)


def codes_of(number):
    """How a command ends: the signal's own end comes before the program takes signals."""
    return {128 + number, -number}


class Run:
    """One `sluice run` whose input and output are what a round chooses."""

    def __init__(self, directory, rng, data):
        self.tmp = os.path.join(directory, "tmp")
        os.mkdir(self.tmp)
        self.output = os.path.join(directory, "out")
        self.source = os.path.join(directory, "in")
        self.to = rng.choice(["file", "file", "-", "unread", "fifo"])
        self.held = rng.random() < 0.25  # an input that does not come to its end
        self.workers = rng.choice([1, 1, 2])
        with open(self.source, "wb") as f:
            f.write(data)
        self.pipe = None
        self.flags = ["run", "--model", LLAMA, "-i", "-" if self.held else self.source,
                      "-o", self.output if self.to in ("file", "fifo") else "-",
                      "--workers", str(self.workers), *FLAGS]
        if self.to == "fifo":
            os.mkfifo(self.output)
        self.log = open(os.path.join(directory, "log"), "wb")
        self.process = subprocess.Popen(
            [os.path.join(harness.BIN, "sluice"), *self.flags],
            stdin=subprocess.PIPE if self.held else subprocess.DEVNULL,
            stdout=subprocess.PIPE if self.to == "unread" else subprocess.DEVNULL,
            stderr=self.log, env={**os.environ, "TMPDIR": self.tmp})
        if self.process.stdout:  # so small that the answers do not fit
            fcntl.fcntl(self.process.stdout, fcntl.F_SETPIPE_SZ, 4096)
        if self.held:
            self.process.stdin.write(data[:len(data) // 2])
            self.process.stdin.flush()

    def finish(self):
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe:
                pipe.close()
        self.log.close()

    def said(self):
        with open(self.log.name, errors="replace") as f:
            return f.read()

    def again(self):
        """The same command, to its end."""
        with open(self.source, "rb") as f:
            done = subprocess.run(
                [os.path.join(harness.BIN, "sluice"), *self.flags], timeout=WHOLE_RUN, capture_output=True,
                stdin=f if self.held else subprocess.DEVNULL, env={**os.environ, "TMPDIR": self.tmp})
        assert done.returncode == 0, done.stderr.decode()


def answers(path):
    with open(path) as f:
        return harness.answers([harness.json.loads(line) for line in f])


def test_runs_are_stopped_at_any_moment(directory):
    rng = random.Random(SEED)
    data = "".join(line + "\n" for line in harness.mixed_requests(60)).encode()
    expected = os.path.join(directory, "expected")
    with open(os.path.join(directory, "in"), "wb") as f:
        f.write(data)
    start = time.monotonic()
    harness.sluice("run", "--model", LLAMA, "-i", f.name, "-o", expected, "-q", *FLAGS)
    wall = time.monotonic() - start
    stops = Stops("sluice run")
    for number in range(ROUNDS):
        place = os.path.join(directory, str(number))
        os.mkdir(place)
        run = Run(place, rng, data)
        sent = rng.choice(SIGNALS)
        again = rng.choice([None, None, None, 0, 0.01])
        after = rng.uniform(0.001, 1.2 * wall)
        check = run.to == "file" and (number < 20 or rng.random() < 0.1)
        time.sleep(after)
        what = f"round {number}: {sent.name} after {after:.3f} s, to {run.to}, held {run.held}, again {again}"
        code = stops.stop(run.process, sent, again)
        run.finish()
        assert code == 0 or code in codes_of(sent), (what, code, run.said())
        left = os.listdir(run.tmp)
        assert not left, (what, left, run.said())
        if code == 0 and run.to == "file":
            assert not os.path.exists(run.output + ".sluice"), (what, os.listdir(place), run.said())
        elif run.to == "file":
            assert "lost" not in run.said(), (what, run.said())
        if check:
            if code != 0:
                run.again()
            assert answers(run.output) == answers(expected), what
            assert sorted(os.listdir(place)) == ["in", "log", "out", "tmp"], (what, os.listdir(place))
        shutil.rmtree(place)
    stops.report()


def marked(mark):
    """The processes that were started with `mark` in their environment, and live."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as f:
                if f"STOPS_TEST={mark}".encode() in f.read().split(b"\0"):
                    found.append(pid)
        except OSError:
            pass  # it has ended
    return found


def daemons(directory, port):
    """Each kind of a program that serves until it is stopped: its name and arguments."""
    worker = [os.path.join(harness.BIN, "sluice-worker"), "--coordinator", f"127.0.0.1:{port}", *MACHINE]
    loads = ["--model", LLAMA, "--port", "0", "--metrics-port", "0"]
    return {
        "coordinator": [os.path.join(harness.BIN, "sluice-coordinator"), "--model", LLAMA, "--port", "0",
                        "--metrics-port", "0", "--state-dir", os.path.join(directory, "state")],
        "worker": [*worker, *loads, "--no-profile"],
        # It measures, in a round that lasts long enough.
        "worker that measures": [*worker, *loads],
        "worker that fetches": [*worker, "--port", "0", "--metrics-port", "0", "--no-profile", "--cache-dir",
                                os.path.join(directory, "cache")],
        "--all": [*worker, *loads, "--no-profile", "--all", "--per", "2"],
    }


def test_daemons_are_stopped_from_their_first_moment_on(directory):
    rng = random.Random(SEED)
    with harness.Cluster(LLAMA, workers=0) as cluster:
        # One port that answers, and one that does not.
        ports = [cluster.port, harness.free_port()]
        kinds = list(daemons(directory, 0))
        counts = {kind: Stops(kind) for kind in kinds}
        for number in range(ROUNDS):
            kind = kinds[number % len(kinds)]
            arguments = daemons(directory, rng.choice(ports))[kind]
            mark = f"{os.getpid()}-{number}"
            sent = rng.choice(SIGNALS)
            again = rng.choice([None, None, None, None, 0.01])
            # The start takes some tens of milliseconds.
            after = rng.choice([rng.uniform(0.001, 0.05), rng.uniform(0.001, 0.5)]) * harness.SLOW
            log = os.path.join(directory, "log")
            with open(log, "wb") as f:
                process = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                           stderr=f, env={**os.environ, "STOPS_TEST": mark})
            time.sleep(after)
            code = counts[kind].stop(process, sent, again)
            what = f"round {number}: {kind}, {sent.name} after {after:.3f} s, again {again}"
            with open(log, errors="replace") as f:
                said = f.read()
            assert code in {0, -sent} or (again is not None and code == 128 + sent), (what, code, said)
            # Children that are killed take a moment to be gone.
            harness.wait_for(lambda: not marked(mark), f"the children of {what}", 20)
        for stops in counts.values():
            stops.report()


def test_other_commands_are_stopped_at_any_moment(directory):
    rng = random.Random(SEED)
    text, requests = os.path.join(directory, "text"), os.path.join(directory, "requests")
    with open(text, "w") as f:
        f.write("In the beginning God created the heaven and the earth. " * 200)
    harness.write_lines(requests, ['{"prompt": "In the", "max_tokens": 2}'] * 5)
    with harness.Cluster(LLAMA, workers=0) as cluster:
        job = cluster.submit(requests)["id"]
        there = ["--coordinator", f"127.0.0.1:{cluster.port}"]
        output = os.path.join(directory, "output")
        commands = {
            "score": ["score", "--model", LLAMA, "-i", text, "--context", "32", *MACHINE],
            "submit --wait": [*there, "submit", "-i", requests, "--wait", "-o", output],
            "submit of a pipe": [*there, "submit", "-i", "-"],
            "watch": [*there, "watch", job],
            "results --follow": [*there, "results", job, "--follow", "-o", output],
            "profile": ["profile", "--threads", "1", "--host-memory", "256MiB"],
            "plan": ["plan", "--model", LLAMA, "--lengths", "64:32:1000", "--host-memory", "512MiB"],
        }
        counts = {name: Stops(name) for name in commands}
        for number in range(ROUNDS):
            name = list(commands)[number % len(commands)]
            sent = rng.choice(SIGNALS)
            tmp = os.path.join(directory, f"tmp-{number}")
            os.mkdir(tmp)
            after = rng.uniform(0.001, 1) * harness.SLOW
            process = subprocess.Popen([os.path.join(harness.BIN, "sluice"), *commands[name]],
                                       stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
                                       stderr=subprocess.PIPE, env={**os.environ, "TMPDIR": tmp})
            time.sleep(after)
            code = counts[name].stop(process, sent)
            process.stdin.close()
            with process.stderr:
                said = process.stderr.read()
            what = f"round {number}: {name}, {sent.name} after {after:.3f} s"
            assert code in codes_of(sent) or (code == 0 and name in ("score", "plan")), (what, code, said)
            assert not os.listdir(tmp), (what, os.listdir(tmp), said)
            left = [n for n in os.listdir(directory) if n.startswith("output")]
            assert not left, (what, left)
        for stops in counts.values():
            stops.report()


def test_a_run_killed_before_any_change_of_a_name_can_be_run_again(directory):
    shim = os.environ.get("SLUICE_CRASH_SHIM")
    if not shim:
        raise harness.Skipped("there is no SLUICE_CRASH_SHIM: sanitizers want to be loaded first")
    source, output = os.path.join(directory, "in"), os.path.join(directory, "out")
    harness.write_lines(source, harness.mixed_requests(8, max_tokens=8))
    expected = None
    kills, names = 0, set()
    while True:
        log = os.path.join(directory, f"log-{kills}")

        def run(**environment):
            return subprocess.run(
                [os.path.join(harness.BIN, "sluice"), "run", "--model", LLAMA, "-i", source, "-o", output,
                 *FLAGS], capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=WHOLE_RUN,
                env={**os.environ, **environment})

        first = run(LD_PRELOAD=shim, CRASH_UNDER=output, CRASH_AT=str(kills + 1), CRASH_LOG=log)
        with open(log) as f:
            steps = f.read().splitlines()
        names.update(steps)
        if first.returncode == 0:
            break  # it has no further change
        assert first.returncode == -signal.SIGKILL, first.stderr
        kills += 1
        second = run()
        assert second.returncode == 0, (steps[-1], second.stderr)
        got = answers(output)
        expected = expected or got
        assert got == expected, steps[-1]
        assert not os.path.exists(output + ".sluice"), (steps[-1], os.listdir(output + ".sluice"))
        os.remove(output)
    for name in ("sluice.accepted", "sluice.db", "run.json", "out"):
        assert any(step.endswith("/" + name) for step in names), (name, names)
    print(f"        {kills} kills", flush=True)


if __name__ == "__main__":
    harness.give_directories(globals())
    harness.run_tests(sys.modules[__name__])
