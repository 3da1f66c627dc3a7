"""Starts the real programs, as a user would, and stops them again.

Everything runs on loopback ports that the system picks. A test is a function
named test_*; run_tests() runs those of its module and prints a summary.
"""

import atexit
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback

TESTS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
MODELS = os.path.join(TESTS, "models")
BIN = os.environ.get("SLUICE_BIN_DIR", "")
# Sanitized programs are several times slower: deadlines stretch, and loads
# shrink, by this factor. Nothing else may depend on it but SANITIZED.
SLOW = int(os.environ.get("SLUICE_TEST_SLOW", "1"))
# A sanitizer maps terabytes of addresses at the start, and takes memory of its own.
SANITIZED = SLOW > 1


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def wait_for(condition, what, seconds=60):
    """Polls until condition() is true and returns its value."""
    end = time.monotonic() + seconds * SLOW
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError(f"waited {seconds * SLOW} s in vain for {what}")


# Programs keep what they found out about files here, and not in the user's cache.
USERS_CACHE = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="sluice-cache-")
atexit.register(shutil.rmtree, os.environ["XDG_CACHE_HOME"], ignore_errors=True)


class Process:
    """A program with its output in files; killed by PID when it is closed."""

    def __init__(self, directory, name, args):
        self.name = name
        self.out_path = os.path.join(directory, f"{name}.out")
        self.log_path = os.path.join(directory, f"{name}.log")
        self._out = open(self.out_path, "ab")
        self._log = open(self.log_path, "ab")
        self._seen = os.path.getsize(self.out_path)
        self.popen = subprocess.Popen(
            args, stdin=subprocess.DEVNULL, stdout=self._out, stderr=self._log)

    def wait_for_output(self, pattern):
        def look():
            with open(self.out_path) as f:
                f.seek(self._seen)
                match = re.search(pattern, f.read())
            if not match and self.popen.poll() is not None:
                raise AssertionError(
                    f"{self.name} ended with {self.popen.returncode}:\n{self.log()}")
            return match
        return wait_for(look, f"{self.name} to print {pattern!r}")

    def log(self):
        with open(self.log_path, errors="replace") as f:
            return f.read()[-6000:]

    def kill9(self):
        self.popen.send_signal(signal.SIGKILL)
        self.popen.wait()

    def close(self):
        """Ends it the polite way; a program that does not end, or that a
        sanitizer stopped, fails the test."""
        if self.popen.poll() is None:
            self.popen.terminate()
            try:
                code = self.popen.wait(20 * SLOW)
            except subprocess.TimeoutExpired:
                self.kill9()
                raise AssertionError(f"{self.name} did not end on SIGTERM:\n{self.log()}")
            assert code == 0, f"{self.name} ended with {code}:\n{self.log()}"
        self._out.close()
        self._log.close()

    def peak_rss_mb(self):
        with open(f"/proc/{self.popen.pid}/status") as f:
            return int(re.search(r"VmHWM:\s+(\d+)", f.read()).group(1)) / 1024


class Trust:
    """A cluster's certificates, secret and tokens in a directory, made as an operator makes them."""

    def __init__(self, directory, *machines):
        self.directory = os.path.join(directory, "tls")
        self.make_certificates(*(machines or ("machine",)))
        self.secret = os.path.join(directory, "cluster-token")
        self.tokens = os.path.join(directory, "tokens.json")
        with open(self.secret, "w") as f:
            f.write("0123456789abcdef0123456789abcdef\n")

    def make_certificates(self, *machines):
        subprocess.run([os.path.join(os.path.dirname(TESTS), "deploy", "tls", "make.sh"), self.directory, *machines],
                       check=True, capture_output=True)

    def path(self, name):
        return os.path.join(self.directory, name)

    def make_token(self, name, *flags):
        return sluice("token", "create", "--file", self.tokens, "--name", name, *flags).stdout.strip()

    def client_flags(self, machine="machine"):
        return ["--tls-ca", self.path("ca.pem"), "--tls-cert", self.path(f"{machine}.pem"),
                "--tls-key", self.path(f"{machine}.key")]

    @property
    def worker_flags(self):
        return [*self.client_flags(), "--cluster-token-file", self.secret]

    @property
    def coordinator_flags(self):
        return [*self.worker_flags, "--tokens", self.tokens]


class Cluster:
    """A coordinator and workers as processes, which speak mutual TLS and want tokens if there is a Trust. Use as a context
    manager."""

    def __init__(self, model, workers=2, coordinator_flags=(), worker_threads=1,
                 worker_flags=(), launcher=(), started=True, trust=None):
        self.model = model
        self.directory = tempfile.mkdtemp(prefix="sluice-e2e-")
        self.port = free_port()
        self.workers = {}
        self.min_workers = workers
        self.coordinator_flags = list(coordinator_flags)
        self.worker_threads = worker_threads
        self.worker_flags = list(worker_flags)
        self.client_flags = []
        self.token = None  # what sluice() shows
        if trust:
            self.coordinator_flags += trust.coordinator_flags
            self.worker_flags += trust.worker_flags
            self.client_flags = trust.client_flags()
        self.launcher = list(launcher)  # what the next programs are started by
        self.coordinator = None
        self.started = started  # False: the test starts them

    def __enter__(self):
        if not self.started:
            return self
        try:
            self.start_coordinator()
            for i in range(self.min_workers):
                self.start_worker(f"worker-{i}")
        except BaseException:
            self.__exit__(*sys.exc_info())
            raise
        return self

    def __exit__(self, exc_type, *_):
        try:
            if exc_type is None:
                for process in [*self.workers.values(), self.coordinator]:
                    process.close()
            else:
                for process in [self.coordinator, *self.workers.values()]:
                    if process and process.popen.poll() is None:
                        process.kill9()
                    if process:
                        print(f"--- log of {process.name}\n{process.log()}")
        finally:
            for process in [self.coordinator, *self.workers.values()]:
                if process and process.popen.poll() is None:
                    process.kill9()
            shutil.rmtree(self.directory, ignore_errors=True)

    def start_coordinator(self):
        self.coordinator = Process(self.directory, "coordinator", [
            *self.launcher, os.path.join(BIN, "sluice-coordinator"), "--model", self.model,
            "--state-dir", os.path.join(self.directory, "state"),
            "--port", str(self.port), "--metrics-port", "0",
            "--min-workers", str(max(1, self.min_workers)), *self.coordinator_flags])
        match = self.coordinator.wait_for_output(r"metrics on (\S+)")
        self.metrics_url = match.group(1)

    def start_worker(self, name, *flags):
        if "--profile" not in (*self.worker_flags, *flags):
            flags = ("--no-profile", *flags)  # measuring takes its time
        if "--host-memory" not in (*self.worker_flags, *flags):
            flags = ("--host-memory", "512MiB", *flags)
        if "--port" not in flags:
            flags = ("--port", "0", *flags)
        if self.model:  # else it is fetched
            flags = ("--model", self.model, *flags)
        self.workers[name] = Process(self.directory, name, [
            *self.launcher, os.path.join(BIN, "sluice-worker"),
            "--coordinator", f"127.0.0.1:{self.port}", "--name", name,
            "--threads", str(self.worker_threads), "--metrics-port", "0",
            *self.worker_flags, *flags])
        match = self.workers[name].wait_for_output(r"metrics on (\S+)")
        self.workers[name].metrics_url = match.group(1)

    def sluice(self, *args, check=True, input=None, token=None):
        return sluice("--coordinator", f"127.0.0.1:{self.port}", *self.client_flags, *args,
                      check=check, input=input, token=token or self.token)

    def status(self, job):
        return json.loads(self.sluice("status", job, "--json").stdout)

    def submit(self, path, *flags):
        return json.loads(
            self.sluice("submit", "-i", path, "--json", *flags).stdout)

    def results(self, job):
        text = self.sluice("results", job).stdout
        return [json.loads(line) for line in text.splitlines()]

    def wait_for_end(self, job, seconds=120):
        ended = ("completed", "failed", "cancelled")
        return wait_for(
            lambda: (s := self.status(job))["status"] in ended and s,
            f"the end of {job}", seconds)


def sluice(*args, check=True, input=None, token=None):
    env = {**os.environ, "SLUICE_TOKEN": token} if token else None
    done = subprocess.run([os.path.join(BIN, "sluice"), *args], input=input, env=env,
                          capture_output=True, text=True, timeout=600 * SLOW)
    if check and done.returncode != 0:
        raise AssertionError(
            f"sluice {' '.join(args)} ended with {done.returncode}:\n{done.stderr}")
    return done


def run(model, lines, *flags, check=True):
    """`sluice run` over `lines` (str or bytes); returns (figures, results)."""
    with tempfile.TemporaryDirectory(prefix="sluice-e2e-") as directory:
        source = os.path.join(directory, "in.jsonl")
        target = os.path.join(directory, "out.jsonl")
        write_lines(source, lines)
        if "--host-memory" not in flags:
            flags = ("--host-memory", "1GiB", *flags)
        done = sluice("run", "--model", model, "--input", source, "--output",
                      target, "--json", *flags, check=check)
        figures = json.loads(done.stdout.splitlines()[-1])
        with open(target) as f:
            return figures, [json.loads(line) for line in f]


def write_lines(path, lines):
    with open(path, "wb") as f:
        for line in lines:
            f.write((line if isinstance(line, bytes) else line.encode()) + b"\n")


def answers(results):
    """Returns what must not depend on where and how a request ran: by custom_id, the choices or
    embeddings and token counts, or the error."""
    out = {}
    for result in results:
        assert result["custom_id"] not in out, f"two results: {result['custom_id']}"
        if result["error"]:
            out[result["custom_id"]] = result["error"]
        else:
            body = result["response"]["body"]
            out[result["custom_id"]] = (body.get("choices", body.get("data")), body["usage"])
    return out


PROMPTS = [
    "In the beginning God created", "And it came to pass", "The LORD is my",
    "Blessed are the", "And the king said unto", "Verily, verily, I say",
    "A wise man", "Behold", "Now the days of David drew nigh", "Thou shalt not",
    "And he said unto them, Go ye into", "The words of the", "O", "For God so",
    "And there was war between the house of Saul and the house of David, and",
]


def mixed_requests(count, max_tokens=24):
    """Greedy and seeded-sampled requests of many lengths, with the sampled
    tokens' names in the answer."""
    lines = []
    for i in range(count):
        body = {"prompt": " ".join(PROMPTS[(i + k) % len(PROMPTS)]
                                   for k in range(1 + i % 4)),
                "max_tokens": 1 + (i * 7) % max_tokens, "logprobs": 0}
        if i % 2:
            body.update(temperature=0.5 + (i % 5) * 0.25, seed=1000 + i,
                        top_p=0.95 if i % 3 else 1.0, top_k=(i % 4) * 20)
        else:
            body.update(temperature=0)
        if i % 7 == 3:
            body.update(presence_penalty=0.5, repetition_penalty=1.2)
        lines.append(json.dumps({
            "custom_id": f"r{i}", "method": "POST", "url": "/v1/completions",
            "body": body}))
    return lines


class Skipped(Exception):
    """Raised by a test that can't run here; says why."""


def give_directories(tests):
    """Has each test of a module's globals() called with a directory of its own, which goes when it ends."""
    def in_a_directory(test):
        def run_it():
            with tempfile.TemporaryDirectory(prefix="sluice-e2e-") as directory:
                test(directory)
        return run_it
    for name in [n for n in tests if n.startswith("test_")]:
        tests[name] = in_a_directory(tests[name])


def run_tests(module):
    """Runs the module's tests (or those named on the command line)."""
    # A shell's background job ignores SIGINT, and so would the programs until they take it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    tests = [(n, f) for n, f in vars(module).items() if n.startswith("test_")]
    wanted = sys.argv[1:]
    failed = 0
    chosen = [(n, f) for n, f in tests if not wanted or n in wanted]
    assert chosen, f"no test named {wanted}"
    for name, function in chosen:
        start = time.monotonic()
        try:
            function()
            print(f"ok      {name} ({time.monotonic() - start:.1f} s)", flush=True)
        except Skipped as reason:
            print(f"skipped {name}: {reason}", flush=True)
        except Exception:
            failed += 1
            traceback.print_exc()
            print(f"FAILED  {name}", flush=True)
    sys.exit(1 if failed else 0)
