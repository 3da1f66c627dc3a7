"""`sluice run` stopped, killed and started again: no answer is lost or made
twice, and no file of the user's is lost.

    python3 resume_test.py --kills 20    # more kills, at random moments
"""

import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time

import harness

LLAMA = os.path.join(harness.MODELS, "llama-kjv")
FLAGS = ("--dtype", "float32", "--host-memory", "512MiB", "--threads", "1", "--gbs", "4")
COUNT = 600  # requests that take some seconds
KILLS = 3
if "--kills" in sys.argv:
    at = sys.argv.index("--kills")
    KILLS = int(sys.argv[at + 1])
    del sys.argv[at:at + 2]


class Place:
    """A directory with an input, where runs put their output."""

    def __enter__(self):
        self.dir = tempfile.mkdtemp(prefix="sluice-resume-")
        self.tmp = os.path.join(self.dir, "tmp")
        os.mkdir(self.tmp)
        self.input, self.output = self.path("in.jsonl"), self.path("out.jsonl")
        self.state = self.output + ".sluice"
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.dir, ignore_errors=True)

    def path(self, name):
        return os.path.join(self.dir, name)

    def start(self, *flags, output=None, model=LLAMA):
        environment = {**os.environ, "TMPDIR": self.tmp}
        own = FLAGS[:FLAGS.index("--gbs")] if "--gbs" in flags else FLAGS
        return subprocess.Popen(
            [os.path.join(harness.BIN, "sluice"), "run", "--model", model, "-i", self.input,
             "-o", output or self.output, *own, *flags],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=environment)

    def run(self, *flags, code=0, **more):
        process = self.start(*flags, **more)
        out, err = process.communicate(timeout=600 * harness.SLOW)
        assert process.returncode == code, (process.returncode, err)
        return out, err

    def stored(self, state=None):
        """Returns the results in the store, by request: {} while there is none. It looks at a copy,
        as to look is to change."""
        copy = tempfile.mkdtemp(dir=self.dir)
        try:
            for name in ("sluice.db", "sluice.db-wal"):
                source = os.path.join(state or self.state, name)
                if os.path.exists(source):
                    shutil.copy(source, copy)
            path = os.path.join(copy, "sluice.db")
            if not os.path.exists(path):
                return {}
            with sqlite3.connect(path) as db:
                return dict(db.execute("SELECT idx, line FROM results"))
        except (sqlite3.Error, FileNotFoundError):
            return {}  # copied in the middle of a change
        finally:
            shutil.rmtree(copy, ignore_errors=True)

    def wait_for_answers(self, process, count):
        def enough():
            assert process.poll() is None, process.communicate()
            return len(self.stored()) >= count
        harness.wait_for(enough, f"{count} answers in the store", 120)

    def write(self, lines):
        harness.write_lines(self.input, lines)

    def names(self):
        return sorted(n for n in os.listdir(self.dir) if n != "tmp")


def requests(count):
    lines = harness.mixed_requests(count, max_tokens=40)
    lines[count // 2] = "{\"custom_id\": \"bad\", \"body\": {}}"
    return lines


def without_time(path):
    """Returns the file's lines without the time at which each answer was made."""
    with open(path) as f:
        lines = []
        for text in f:
            line = json.loads(text)
            if not line["error"]:
                del line["response"]["body"]["created"]
            lines.append(json.dumps(line))
        return lines


def test_killed_at_any_moment_and_started_again_the_answers_are_the_same():
    rng = random.Random(KILLS)
    count = 200 * KILLS
    with Place() as place:
        place.write(requests(count))
        start = time.monotonic()
        place.run("-q", output=place.path("whole.jsonl"))
        wall = time.monotonic() - start
        expected = without_time(place.path("whole.jsonl"))
        known, kills, kept = {}, 0, []
        while kills < KILLS:
            process = place.start()
            if kills % 2:
                # The run makes some more answers, however slow the machine is.
                place.wait_for_answers(process, len(known) + rng.randint(1, 100))
            else:
                time.sleep(rng.uniform(0, 2 * wall / KILLS))
            process.kill()
            _, err = process.communicate()
            if process.returncode == 0:  # it was faster
                break
            assert process.returncode == -signal.SIGKILL, err
            kills += 1
            stored = place.stored()
            if known:
                assert f"resuming: {len(known)} of {count} answers" in err or not err, err
            for index, line in known.items():
                assert stored[index] == line, f"request {index} was answered again"
            known = stored
            kept.append(len(known))
            assert not os.path.exists(place.output)
        assert kills == KILLS, f"only {kills} kills of {KILLS}: {kept}"
        out, err = place.run("--json")
        figures = json.loads(out.splitlines()[-1])
        assert f"resuming: {len(known)} of {count} answers are there" in err, err
        assert figures["requests"] == count and figures["failed"] == 1, figures
        # The bad line's error was there from the beginning.
        assert figures["resumed"] == len(known) - 1, (figures["resumed"], len(known))
        assert without_time(place.output) == expected
        with open(place.output, "rb") as f:
            lines = f.read().splitlines()
        for index, line in known.items():
            assert lines[index] == line, f"request {index} was answered again"
        assert place.names() == ["in.jsonl", "out.jsonl", "whole.jsonl"], place.names()
        print(f"  {kills} kills, answers kept after each: {kept}, of {count}")


def test_a_signal_ends_it_in_order_and_the_same_command_goes_on():
    with Place() as place:
        place.write(requests(COUNT))
        harness.write_lines(place.output, ["yesterday's"])
        for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
            before = len(place.stored())
            process = place.start()
            place.wait_for_answers(process, before + 5)
            process.send_signal(number)
            _, err = process.communicate(timeout=120 * harness.SLOW)
            assert process.returncode == code, (process.returncode, err)
            kept = len(place.stored())
            assert f"stopped: {kept} of {COUNT} answers are kept in {place.state}; run the same " \
                   "command again to go on" in err, err
            assert kept < COUNT
            with open(place.output) as f:
                assert f.read() == "yesterday's\n"
            assert place.names() == ["in.jsonl", "out.jsonl", "out.jsonl.sluice"], place.names()
        _, err = place.run()
        assert f"resuming: {kept} of {COUNT} answers are there" in err, err
        place.run("-q", output=place.path("whole.jsonl"))
        assert without_time(place.output) == without_time(place.path("whole.jsonl"))
        assert os.listdir(place.tmp) == []


def long_requests(count, tokens):
    """Requests of all kinds that end together, and late."""
    lines = []
    for i in range(count):
        body = {"prompt": harness.PROMPTS[i % len(harness.PROMPTS)], "max_tokens": tokens,
                "ignore_eos": True, "seed": i, "temperature": 0.9 if i % 2 else 0}
        if i % 3 == 0:
            body.update(logprobs=2, echo=i % 2 == 0)
        if i % 3 == 1:
            body["stop"] = ["never in it", "nor this"]
        if i % 5 == 2:
            body.update(presence_penalty=0.5, repetition_penalty=1.2)
        lines.append(json.dumps({"custom_id": f"r{i}", "method": "POST", "url": "/v1/completions",
                                 "body": body}))
    return lines


def kept_tokens(place):
    """The bytes of tokens of unfinished requests in the store."""
    copy = tempfile.mkdtemp(dir=place.dir)
    try:
        for name in ("sluice.db", "sluice.db-wal"):
            source = os.path.join(place.state, name)
            if os.path.exists(source):
                shutil.copy(source, copy)
        with sqlite3.connect(os.path.join(copy, "sluice.db")) as db:
            return db.execute("SELECT ifnull(sum(length(data)), 0) FROM progress").fetchone()[0]
    except (sqlite3.Error, FileNotFoundError):
        return 0  # there is none, or it was copied in the middle of a change
    finally:
        shutil.rmtree(copy, ignore_errors=True)


def stop_in_slots(place, flags, end):
    """Runs the job, ended by `end` whenever some more tokens are in the store (a slot of time in which
    no answer need be made), until it is done; returns what the runs said."""
    said, before = [], 0
    for _ in range(40):
        process = place.start(*flags)
        while process.poll() is None and kept_tokens(place) < before + 8000:
            time.sleep(0.02)
        end(process)
        _, err = process.communicate(timeout=120 * harness.SLOW)
        said.append(err)
        if process.returncode == 0:
            return said
        before = kept_tokens(place)
    raise AssertionError(f"no end after 40 slots: {said[-1]}")


def test_a_run_in_slots_goes_on_though_no_answer_ends_in_any():
    count, tokens = 16, 400
    for number in (signal.SIGKILL, signal.SIGINT):
        with Place() as place:
            place.write(long_requests(count, tokens))
            place.run("-q", "--gbs", "16", output=place.path("whole.jsonl"))

            def end(process, number=number):
                if number == signal.SIGKILL:
                    process.kill()
                else:
                    process.send_signal(number)

            said = stop_in_slots(place, ("--gbs", "16", "--keep-interval", "0.05"), end)
            assert without_time(place.output) == without_time(place.path("whole.jsonl"))
            resumed = [line for err in said for line in err.splitlines()
                       if line.startswith("resuming: ")]
            assert resumed and " tokens of 16 more" in resumed[0], said
            if number == signal.SIGINT:
                assert f"stopped: 0 of {count} answers are kept in {place.state}; run the same " \
                       "command again to go on; of 16 more, " in said[0], said[0]
            print(f"  {len(said)} slots by signal {number.name}: {resumed}")


def test_tokens_of_other_options_are_not_used():
    with Place() as place:
        place.write(long_requests(16, 300))
        flags = ("--gbs", "16", "--keep-interval", "0.05")
        process = place.start(*flags)
        harness.wait_for(lambda: kept_tokens(place) > 0, "tokens in the store", 120)
        process.kill()
        process.communicate()
        # What the disk changed is dropped with a word.
        with sqlite3.connect(os.path.join(place.state, "sluice.db")) as db:
            db.execute("UPDATE progress SET data = zeroblob(length(data))")
        _, err = place.run(*flags)
        assert "are damaged, and are dropped" in err, err
        place.run("-q", "--gbs", "16", output=place.path("whole.jsonl"))
        assert without_time(place.output) == without_time(place.path("whole.jsonl"))


def test_a_pipe_is_read_once_and_a_signal_while_it_waits_leaves_nothing():
    with Place() as place:
        place.write(requests(50))
        os.mkfifo(place.path("pipe"))
        with open(place.input, "rb") as f:
            prompts = f.read()
        place.run("-q", output=place.path("whole.jsonl"))
        for output in (place.output, "-"):
            for stop in (True, False):
                process = subprocess.Popen(
                    [os.path.join(harness.BIN, "sluice"), "run", "--model", LLAMA, "-i",
                     place.path("pipe"), "-o", output, "-q", *FLAGS], stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE, env={**os.environ, "TMPDIR": place.tmp})
                with open(place.path("pipe"), "wb") as pipe:
                    pipe.write(prompts[:1000])
                    pipe.flush()
                    if stop:
                        process.send_signal(signal.SIGINT)
                    else:
                        pipe.write(prompts[1000:])
                out, err = process.communicate(timeout=120 * harness.SLOW)
                assert process.returncode == (130 if stop else 0), (process.returncode, err)
                assert os.listdir(place.tmp) == []
                if output == "-" and not stop:
                    with open(place.output, "wb") as f:
                        f.write(out)
                if not stop:
                    assert without_time(place.output) == without_time(place.path("whole.jsonl"))


def test_answers_stay_when_the_input_of_the_same_command_cannot_be_read():
    with Place() as place:
        place.write(requests(COUNT))

        def start(stdin):
            return subprocess.Popen(
                [os.path.join(harness.BIN, "sluice"), "run", "--model", LLAMA, "-i", "-", "-o",
                 place.output, *FLAGS], stdin=stdin, stdout=subprocess.PIPE,
                stderr=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": place.tmp})

        def pipe():
            return subprocess.Popen(["cat", place.input], stdout=subprocess.PIPE)

        with pipe() as cat:
            process = start(cat.stdout)
            place.wait_for_answers(process, 5)
            process.kill()
            process.communicate()
        before = place.stored()
        # A read of a directory fails.
        directory = os.open(place.dir, os.O_RDONLY)
        process = start(directory)
        os.close(directory)
        _, err = process.communicate(timeout=60 * harness.SLOW)
        assert process.returncode == 2 and "can't read the input" in err, (process.returncode, err)
        assert place.stored() == before
        with pipe() as cat:
            process = start(cat.stdout)
            _, err = process.communicate(timeout=600 * harness.SLOW)
        assert process.returncode == 0, err
        assert f"resuming: {len(before)} of {COUNT} answers are there" in err, err
        assert place.names() == ["in.jsonl", "out.jsonl"], place.names()


def test_a_directory_of_the_users_own_loses_no_file_as_a_state_directory():
    with Place() as place:
        place.write(requests(20))
        os.rename(place.input, place.path("input"))
        os.symlink(LLAMA, place.path("model"))
        before = place.names()

        def refused(*flags):
            done = subprocess.run(
                [os.path.join(harness.BIN, "sluice"), "run", "--model", "model", "-o",
                 "out.jsonl", *FLAGS, *flags], cwd=place.dir, stdin=subprocess.DEVNULL,
                capture_output=True, text=True)
            assert done.returncode == 2 and "say another --state-dir" in done.stderr, done
            assert place.names() == before, place.names()

        for more in ([], ["--restart"]):
            refused("-i", "input", "--state-dir", ".", *more)
            refused("-i", "-", "--state-dir", place.dir, *more)


def test_stdout_gets_whole_lines_and_the_temporary_store_goes():
    with Place() as place:
        place.write(requests(COUNT))
        process = place.start(output="-")
        first = process.stdout.readline()
        assert json.loads(first)["custom_id"] == "r0", first
        process.send_signal(signal.SIGINT)
        # The reader of the first line reads the rest, too: it may have read on, which communicate()
        # would not see.
        out = process.stdout.read()
        _, err = process.communicate(timeout=120 * harness.SLOW)
        assert process.returncode == 130, (process.returncode, err)
        assert "stopped" in err and "none is kept" in err, err
        assert not out or out.endswith("\n")
        for line in out.splitlines():
            json.loads(line)
        assert os.listdir(place.tmp) == []


def test_another_run_does_not_go_on_with_the_answers():
    with Place() as place:
        place.write(requests(COUNT))
        process = place.start()
        place.wait_for_answers(process, 3)
        process.kill()
        process.communicate()
        before = place.stored()
        for flags, words in ((["--max-tokens", "7"], "--max-tokens was not given and is 7"),
                             (["--served-model-name", "m"], "--served-model-name was"),
                             (["--policy", "compress-weights=int8"], "--policy was")):
            _, err = place.run(*flags, code=2)
            assert words in err and "--restart" in err and place.state in err, err
        _, err = place.run(code=2, model=os.path.join(harness.MODELS, "opt-kjv"))
        assert "config.json is another one; " in err, err
        os.rename(place.input, place.path("kept.jsonl"))
        place.write(requests(COUNT - 1))
        _, err = place.run(code=2)
        assert "the input is another one" in err, err
        assert place.stored() == before
        # Flags that change no answer may change.
        place.write(requests(COUNT))
        _, err = place.run("--workers", "2", "--blocks", "3")
        assert f"resuming: {len(before)} of {COUNT}" in err, err

        process = place.start()
        place.wait_for_answers(process, 3)
        process.kill()
        process.communicate()
        _, err = place.run("--max-tokens", "7", "--restart")
        assert "resuming" not in err, err
        assert place.names() == ["in.jsonl", "kept.jsonl", "out.jsonl"], place.names()


def test_a_named_state_directory_computes_no_job_that_nobody_gets():
    with Place() as place:
        place.write(requests(COUNT))
        state = place.path("state")
        process = place.start("--state-dir", state)
        harness.wait_for(lambda: len(place.stored(state)) >= 3, "3 answers")
        process.kill()
        process.communicate()
        _, err = place.run("--state-dir", state, "--seed", "3", code=2)
        assert "--seed was not given and is 3" in err, err
        out, _ = place.run("--state-dir", state, "--json")
        figures = json.loads(out.splitlines()[-1])
        assert 2 <= figures["resumed"] < COUNT, figures
        # All are there: the same command gives them again.
        first = without_time(place.output)
        out, _ = place.run("--state-dir", state, "--json")
        assert json.loads(out.splitlines()[-1])["resumed"] == COUNT - 1
        assert without_time(place.output) == first
        # An ended run stands in nobody's way.
        place.run("--state-dir", state, "--seed", "3")


def test_no_file_is_lost_to_a_command_that_fails():
    with Place() as place:
        place.write(requests(20))
        harness.write_lines(place.output, ["yesterday's"])
        with open(place.input, "rb") as f:
            prompts = f.read()
        os.symlink("in.jsonl", place.path("link"))
        os.link(place.input, place.path("hard"))
        here = ["-i", place.input]
        for flags, code, words in (
                (["--model", "/nonexistent", *here, "-o", place.output], 2, "/nonexistent"),
                (["--model", LLAMA, *here, "-o", place.output, "--host-memory", "1KiB"], 1,
                 "memory"),
                (["--model", LLAMA, "-i", place.path("none"), "-o", place.output], 2, "none"),
                (["--model", LLAMA, "-i", os.devnull, "-o", place.output], 2, "no requests"),
                (["--model", LLAMA, *here, "-o", place.output, "--policy", "w=5"], 2, "w"),
                (["--model", LLAMA, *here, "-o", place.input], 2, "are one file"),
                (["--model", LLAMA, *here, "-o", place.path("link")], 2, "are one file"),
                (["--model", LLAMA, *here, "-o", place.path("hard")], 2, "are one file"),
                (["--model", LLAMA, *here, "-o", place.output, "--errors", place.input], 2,
                 "are one file"),
                (["--model", LLAMA, *here, "-o", place.output, "--errors", place.output], 2,
                 "are one file"),
                (["--model", LLAMA, *here, "-o", place.output, "--trace", place.input], 2,
                 "are one file"),
                (["--model", LLAMA, *here, "-o", place.dir], 2, "directory"),
                (["--model", LLAMA, *here, "-o", place.path("no/out")], 2, "no directory")):
            done = harness.sluice("run", *flags, check=False)
            assert done.returncode == code and words in done.stderr, (flags, done.returncode,
                                                                      done.stderr)
            with open(place.output) as f:
                assert f.read() == "yesterday's\n", flags
            with open(place.input, "rb") as f:
                assert f.read() == prompts, flags
            assert not os.path.exists(place.state), flags
        done = harness.sluice("--coordinator", f"127.0.0.1:{harness.free_port()}", "results",
                              "job_1", "-o", place.output, check=False)
        assert done.returncode == 4, done.stderr
        with open(place.output) as f:
            assert f.read() == "yesterday's\n"


def test_exit_codes_say_when_nothing_succeeded():
    with Place() as place:
        place.write(['{"prompt": 1}', '{"prompt": "x", "max_tokens": 0}', '{"prompt": 2}'])
        out, err = place.run("-q", code=3)
        assert out == "" and "nothing succeeded: 3 of 3 requests failed" in err, (out, err)
        assert "the first: line 1: " in err, err
        with open(place.output) as f:
            assert len(f.read().splitlines()) == 3
        for name, content in (("in.gz", b"\x1f\x8b\x08"), ("in.csv", b"id,text\n1,x\n"),
                              ("in.json", b'[{"prompt": "x"}]')):
            with open(place.path(name), "wb") as f:
                f.write(content)
            done = harness.sluice("run", "--model", LLAMA, "-i", place.path(name), "-o",
                                  place.output, check=False)
            assert done.returncode == 2 and name in done.stderr, done.stderr


def test_the_default_of_max_tokens_is_said_and_what_it_cuts_is_counted():
    with Place() as place:
        place.write(['{"prompt": "And", "ignore_eos": true}', '{"prompt": "And", "max_tokens": 2}'])
        _, err = place.run()
        assert "1 of 2 requests do not say max_tokens: they end after at most 128" in err, err
        assert "1 answer was cut at max_tokens 128, the default" in err, err
        _, err = place.run("--max-tokens", "5")
        assert "do not say" not in err and "default" not in err, err


if __name__ == "__main__":
    harness.run_tests(sys.modules[__name__])
