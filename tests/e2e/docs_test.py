"""Each command of README.md and of docs/ is run, as a reader would run it, against a small model: only what stands for the
reader's own folders, machines and jobs is put in. A block that is not run has a comment above it, which pages do not show:

    <!-- not run: why -->

A block of JSON lines is parsed."""

import glob
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

import gguf_test
import harness
import plan_test

ROOT = os.path.dirname(harness.TESTS)
LLAMA = os.path.join(harness.MODELS, "llama-kjv")
NOT_RUN = re.compile(r"<!-- not run: \S.*-->")
SERVERS = ("sluice-coordinator", "sluice-worker")
MACHINES = 2  # where each of a cluster's machines is to start a worker


class Block:
    """Commands or data of a page: lines of it that are indented or fenced."""

    def __init__(self, page, number, lines, marked):
        self.name, self.lines, self.marked = f"{page}:{number}", lines, marked


def blocks_of(page):
    """Returns the page's blocks. Fences of a language that is no shell's are none."""
    with open(os.path.join(ROOT, page)) as f:
        lines = f.read().split("\n")
    blocks, marked, fence = [], False, None
    in_block = in_text = False  # in an indented block; right below a line of a paragraph or a list
    for number, line in enumerate(lines, 1):
        if line.startswith("```"):
            opens = fence is None
            fence = line.strip("`").strip() if opens else None
            if opens and fence in ("", "sh", "bash", "console", "shell"):
                blocks.append(Block(page, number, [], marked))
            in_block = in_text = marked = False
        elif fence is not None:
            if fence in ("", "sh", "bash", "console", "shell"):
                blocks[-1].lines.append(line)
        elif line.startswith("    ") and line.strip():
            if in_text:
                continue  # the paragraph, or the list's item, goes on
            if not in_block:
                blocks.append(Block(page, number, [], marked))
            blocks[-1].lines.append(line[4:])
            in_block, marked = True, False
        elif line.strip():
            marked = bool(NOT_RUN.fullmatch(line.strip()))
            in_block, in_text = False, not line.startswith(("<!--", "#"))
        else:
            in_text = False
    return blocks


class Reader:
    """Somebody who does what a page says, in a folder with the files that it names. Use as a context manager."""

    def __init__(self):
        self.cluster = harness.Cluster(LLAMA, started=False)
        self.folder = self.cluster.directory
        self.servers = []
        self.said = ""  # by the commands so far

    def path(self, name):
        return os.path.join(self.folder, name)

    def __enter__(self):
        for name in ("prompts.jsonl", "in.jsonl"):
            harness.write_lines(self.path(name), [json.dumps({"prompt": p, "max_tokens": 8}) for p in harness.PROMPTS])
        harness.write_lines(self.path("reviews.csv"), ["id,text", "1,good", '2,"bad, and ""long"""'])
        harness.write_lines(self.path("text.txt"), [" ".join(harness.PROMPTS)] * 20)
        gguf_test.write_gguf(self.path("SmolLM2-135M-Instruct.Q4_1.gguf"), *gguf_test.as_gguf(gguf_test.Q8_0))  # a small one
        os.mkdir(self.path("disk"))
        os.symlink(os.path.join(ROOT, "deploy"), self.path("deploy"))
        snapshot = self.path("hub/models--org--name/snapshots/" + "0" * 40)
        shutil.copytree(LLAMA, snapshot)
        os.makedirs(self.path("hub/models--org--name/refs"))
        with open(self.path("hub/models--org--name/refs/main"), "w") as f:
            f.write("0" * 40)
        self.env = {**os.environ, "PATH": f"{harness.BIN}:{os.environ['PATH']}", "HF_HUB_CACHE": self.path("hub"),
                    "SLUICE_PROFILE": self.path("profile.json"),
                    "SLUICE_COORDINATOR_PORT": str(self.cluster.port), "SLUICE_COORDINATOR_METRICS_PORT": "0",
                    "SLUICE_WORKER_METRICS_PORT": "0", "SLUICE_WORKER_PORT": "0", "SLUICE_WORKER_NO_PROFILE": "1",
                    "SLUICE_WORKER_HOST_MEMORY": "512MiB", "SLUICE_WORKER_THREADS": "1"}
        with open(self.path("profile.json"), "w") as f:
            json.dump(plan_test.PROFILE, f)  # so that nothing is measured
        return self

    def __exit__(self, *_):
        for process in self.servers:
            if process.popen.poll() is None:
                process.kill9()
        shutil.rmtree(self.folder, ignore_errors=True)

    def run(self, command, check=True):
        done = subprocess.run(["bash", "-c", command], cwd=self.folder, env=self.env, capture_output=True, text=True,
                              timeout=300 * harness.SLOW, stdin=subprocess.DEVNULL)
        assert not check or done.returncode == 0, f"{command}\nended with {done.returncode}: {done.stdout}{done.stderr}"
        self.said += done.stdout
        return done.stdout

    def job(self, requests, *flags):
        """Submits one more job of the reader's, who has a cluster, whether or not the page tells how; returns its id."""
        if not self.servers:
            self.env["SLUICE_COORDINATOR"] = f"127.0.0.1:{self.cluster.port}"
            self.start(self.put_in("sluice-coordinator --model DIR --state-dir /var/lib/sluice"))
            self.start(self.put_in("sluice-worker --model DIR --coordinator HOST:7070"))
        harness.write_lines(self.path("more.jsonl"),
                            [json.dumps({"prompt": "O", "max_tokens": 100, "ignore_eos": True})] * requests)
        return json.loads(self.run(f"{self.at} sluice submit -i more.jsonl --json {' '.join(flags)}").splitlines()[-1])["id"]

    @property
    def at(self):
        return f"SLUICE_COORDINATOR=127.0.0.1:{self.cluster.port}"

    def put_in(self, line):
        """What the reader has, in place of the names that stand for it."""
        line = re.sub(r"path/to/model|models/llama\b|\bDIR\b", LLAMA, line)
        line = re.sub(r"/var/lib/sluice|/fast/disk", lambda m: self.path(os.path.basename(m[0])), line)
        line = line.replace("HOST:7070", f"127.0.0.1:{self.cluster.port}").replace("THIS_HOST", "127.0.0.1")
        if re.search(r"\bJOB\b", line):  # pausing wants one that runs, deleting one that has ended
            goes_on = "pause" in line
            line = re.sub(r"\bJOB\b", self.job(20_000) if goes_on else self.job(2, "--wait"), line)
        line = re.sub(r"\bWORKER\b", "worker-1", line)
        if "sluice-coordinator --tokens" in line:
            line = line.replace(" ...", f" --model {LLAMA} --state-dir {self.path('tokens-state')}")
        if "SLUICE_TOKEN=..." in line:
            token = [t for t in re.findall(r"\S{30,}", self.said) if not t.startswith("/")][-1]
            line = line.replace("SLUICE_TOKEN=...", f"SLUICE_TOKEN={token} {self.at}")
        return line

    def start(self, line):
        """Starts a server, or the workers of all machines."""
        # A comment says on which machine.
        command = line.split(" #")[0]
        many = MACHINES if command.startswith("sluice-worker") and "--all" not in command else 1
        for _ in range(many):
            n = len(self.servers)
            name = f" --name worker-{n}" if many > 1 else ""
            process = harness.Process(self.folder, f"server-{n}", [
                "env", *(f"{k}={v}" for k, v in self.env.items()), "bash", "-c", f"cd {self.folder} && exec {command}{name}"])
            self.servers.append(process)
            process.wait_for_output(r"metrics on (\S+)")

    def do(self, block):
        lines = [line for line in block.lines if line.strip()]
        prompts = [line for line in lines if line.startswith("$ ")]
        if prompts:  # the other lines are what the commands print
            lines = [line[2:] for line in prompts]
        script = ""  # what a line sets holds for the next ones
        for line in lines:
            line = self.put_in(line)
            if line.startswith(SERVERS) and "--check-config" not in line:
                self.start(line)
            elif line.startswith("export "):
                script += line + "\n"
            else:
                try:
                    self.run(f"set -e\n{script}{line}")
                except AssertionError as error:
                    raise AssertionError(f"{block.name}: {error}") from None


def is_json(line):
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


def page_test(page):
    def test():
        todo = []
        for block in blocks_of(page):
            if block.marked or all(is_json(line) for line in block.lines if line.strip()):
                continue
            todo.append(block)
        if not todo:
            return
        with Reader() as reader:
            for block in todo:
                reader.do(block)
    return test


def test_blocks_are_found():
    with tempfile.NamedTemporaryFile("w", suffix=".md") as f:
        f.write("Text\n    that goes\n    on\n\n    sluice one\n\n    sluice two\n\n<!-- not run: no reason -->\n\n    sluice three\n\n"
                "Text:\n\n    sluice four\n\n```sh\nsluice five\n```\n\n```mermaid\nsluice six\n```\n<!-- not run: -->\n\n"
                "    sluice seven\n")
        f.flush()
        assert [(b.lines, b.marked) for b in blocks_of(f.name)] == [
            (["sluice one", "sluice two"], False), (["sluice three"], True), (["sluice four"], False),
            (["sluice five"], False), (["sluice seven"], False)]


def test_a_command_that_fails_or_is_unknown_fails():
    with Reader() as reader:
        for line in ("sluice nothing", "sluice run --model DIR -i none.jsonl -o out.jsonl"):
            try:
                reader.do(Block("page", 1, [line], False))
            except AssertionError as error:
                assert "page:1" in str(error) and "ended with 2" in str(error), error
            else:
                raise AssertionError(f"{line} passed")


for path in [os.path.join(ROOT, "README.md"), *sorted(glob.glob(os.path.join(ROOT, "docs/*.md")))]:
    name = os.path.relpath(path, ROOT)
    globals()["test_" + re.sub(r"\W", "_", name.removesuffix(".md").lower())] = page_test(name)

if __name__ == "__main__":
    harness.run_tests(sys.modules[__name__])
