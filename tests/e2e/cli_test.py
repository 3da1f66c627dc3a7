"""Tests what people type and what they are told: exact messages, names from outside, restarts of
the coordinator below a command that follows a job."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import harness

LLAMA = os.path.join(harness.MODELS, "llama-kjv")


def start(*args):
    """A `sluice` command that runs on."""
    return subprocess.Popen([os.path.join(harness.BIN, "sluice"), *args],
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def fails(code, says, *args):
    """The command ends with `code` and one line that is `says`."""
    done = harness.sluice(*args, check=False)
    assert done.returncode == code, (args, done.returncode, done.stderr)
    assert done.stderr == f"sluice: {says}\n", (args, done.stderr)


def test_mistakes_take_one_line_that_says_what_was_meant():
    fails(2, "unknown command 'runn'; did you mean 'run'?", "runn")
    fails(2, "unknown flag --max-token; did you mean --max-tokens?",
          "run", "--model", LLAMA, "-i", "x", "-o", "y", "--max-token", "5")
    fails(2, "--max-tokens: must be a whole number of at least 1, not -5",
          "run", "--model", LLAMA, "-i", "x", "-o", "y", "--max-tokens", "-5")
    fails(2, "--top-p: must be a number from 0 to 1, not 1.5",
          "run", "--model", LLAMA, "-i", "x", "-o", "y", "--top-p", "1.5")
    fails(2, "--output requires --wait", "submit", "-i", "x", "-o", "y")
    fails(2, "unknown flag --frobnicate; `sluice list --help` lists those that there are",
          "list", "--frobnicate")
    bare = harness.sluice(check=False)
    assert bare.returncode == 2 and "sluice run --model" in bare.stderr, bare


def test_aliases_stand_in_for_the_flags_themselves():
    with tempfile.TemporaryDirectory(prefix="sluice-e2e-") as d:
        harness.write_lines(f"{d}/in", ['{"prompt": "In the", "max_tokens": 2}'])
        done = harness.sluice(
            "run", "--model", LLAMA, "--host-memory", "512MiB", "--input-file", f"{d}/in",
            "--output-file", f"{d}/out", "--max-num-seqs", "3", "--max-num-batched-tokens", "64",
            "--pipeline-parallel-size", "2", "--json")
        figures = json.loads(done.stdout.splitlines()[-1])
        assert (figures["gbs"], figures["workers"]) == (3, 2), figures
        assert "response" in json.load(open(f"{d}/out"))
        harness.sluice("plan", "--model", LLAMA, "--input", f"{d}/in", "--format", "text",
                       "--host-memory", "512MiB")
        missing = f"can't read the input {d}/none: No such file or directory"
        fails(2, missing, "submit", "--input-file", f"{d}/none", "--wait", "--output-file",
              f"{d}/out", "--errors", f"{d}/errors")
    fails(2, "--output requires --wait", "submit", "-i", "x", "--output-file", "y")


def fails_with(code, part, *args):
    """The command ends with `code` and a message that has `part`."""
    done = harness.sluice(*args, check=False)
    assert done.returncode == code and part in done.stderr, (args, done.returncode, done.stderr)


def test_a_warning_comes_once():
    with tempfile.TemporaryDirectory(prefix="sluice-e2e-") as d:
        harness.write_lines(f"{d}/in", ['{"prompt": "In the", "max_tokens": 2}'])
        for warning, *flags in (("--host-memory 9999TiB:", "--host-memory", "9999TiB"),
                                ("--tensor-parallel 3 with 1 thread:", "--host-memory", "1GiB",
                                 "--threads", "1", "--tensor-parallel", "3")):
            for workers in "1", "2":
                done = harness.sluice("run", "--model", LLAMA, "--input", f"{d}/in", "--output",
                                      f"{d}/out", "--restart", "--workers", workers, *flags)
                assert done.stderr.count(warning) == 1, done.stderr


def test_no_path_is_made_for_a_directory():
    with tempfile.TemporaryDirectory(prefix="sluice-e2e-") as d:
        harness.write_lines(f"{d}/in", ['{"prompt": "In the", "max_tokens": 2}'])
        said = f"{d}/typo/x: there is no directory {d}/typo; make it first, or name another one"
        run = ("run", "--model", LLAMA, "--host-memory", "1GiB", "-i", f"{d}/in", "-o", f"{d}/out")
        fails_with(2, f"--disk-dir {said}", *run, "--disk-dir", f"{d}/typo/x")
        fails_with(2, f"--state-dir {said}", *run, "--state-dir", f"{d}/typo/x")
        fails_with(2, f"--disk-dir {said}", "plan", "--model", LLAMA, "-i", f"{d}/in",
                   "--disk-dir", f"{d}/typo/x")
        for program, flag, *flags in (
                ("sluice-worker", "--cache-dir", "--coordinator", "localhost:1"),
                ("sluice-worker", "--disk-dir", "--coordinator", "localhost:1", "--model", LLAMA),
                ("sluice-coordinator", "--state-dir", "--model", LLAMA)):
            ports = ("--port", "0", "--metrics-port", "0")
            done = subprocess.run([os.path.join(harness.BIN, program), *flags, *ports, flag,
                                   f"{d}/typo/x"], capture_output=True, text=True, timeout=60)
            assert done.returncode == 2 and f"{flag} {said}" in done.stderr, done
        assert not os.path.exists(f"{d}/typo")


def test_messages_name_files_and_what_is_wrong_with_them():
    with tempfile.TemporaryDirectory(prefix="sluice-e2e-") as d:
        harness.write_lines(f"{d}/in", ['{"prompt": "In the", "max_tokens": 2}'])
        model = os.path.join(d, "model")
        shutil.copytree(LLAMA, model)
        run = ("run", "--model", model, "--host-memory", "1GiB", "-i", f"{d}/in", "-o", f"{d}/out")
        fails_with(2, f"can't read the file '{d}/none': No such file", *run, "--policy", f"@{d}/none")
        harness.write_lines(f"{d}/bad", ['{"a":,}'])
        fails_with(2, "expected JSON, which this is not", *run, "--policy", f"@{d}/bad")
        fails_with(2, "no JSON: line 1, column 6: syntax error", "plan", "--model", LLAMA, "-i",
                   f"{d}/in", "--profile", f"{d}/bad")
        shard = sorted(f for f in os.listdir(model) if f.endswith(".safetensors"))[1]
        os.remove(os.path.join(model, shard))
        fails_with(2, f"{shard} is missing: it is shard 2 of 3 that "
                   "model.safetensors.index.json names; the download was cut", *run)
        shutil.copy(os.path.join(LLAMA, shard), model)
        for file in "config.json", "tokenizer_config.json":
            os.chmod(os.path.join(model, file), 0o644)
            shutil.copy(f"{d}/bad", os.path.join(model, file))
            error = harness.sluice(*run, check=False).stderr
            assert "not JSON: line 1, column 6" in error, error
            assert "json.exception" not in error, error
            shutil.copy(os.path.join(LLAMA, file), os.path.join(model, file))


def test_help_fits_eighty_columns():
    programs = [["sluice", c] for c in COMMANDS]
    for command in [["sluice"], ["sluice-coordinator"], ["sluice-worker"], *programs]:
        text = subprocess.run([os.path.join(harness.BIN, command[0]), *command[1:], "--help"],
                              capture_output=True, text=True, check=True).stdout
        long = [line for line in text.splitlines() if len(line) > 80]
        assert not long, (command, long)
        assert "log-level" in text and "log-format" in text, command


COMMANDS = ("run", "score", "submit", "status", "watch", "results", "cancel", "delete", "list",
            "cluster", "plan", "simulate", "profile", "models")

# Twins of flags that mean the same wherever they are, though each help says it in its own words.
ONE_MEANING = {
    "SLUICE_" + name for name in (
        "MODEL COORDINATOR LOG_LEVEL LOG_FORMAT INPUT INPUT_FORMAT OUTPUT ERRORS JSON LENGTHS MAX_TOKENS "
        "MAX_MODEL_LEN PROFILE HOST_MEMORY DEVICE_MEMORY DISK_DIR DISK_SPACE WORKERS THREADS "
        "POLICY GBS NUM_MICROBATCHES BLOCKS MAX_STEP_TOKENS LOAD_FORMAT SERVED_MODEL_NAME "
        "GENERATION_CONFIG"
    ).split()}


def test_all_texts_name_all_keys_of_the_policy():
    error = harness.sluice("run", "--model", LLAMA, "-i", "/dev/null", "-o", "/tmp/unused",
                           "--host-memory", "1GiB", "--policy", "speed=1", check=False).stderr
    keys = set(re.split(", | and ", error.split("; known are ")[1].strip()))
    assert {"gbs", "w", "c", "h", "tensor-parallel", "link-dtype"} < keys, keys
    # Plans are made for one value of these.
    aside = {"schedule", "overlap", "packing", "sparsity"}
    for program, expected in ((["sluice", "run"], keys), (["sluice", "score"], keys),
                              (["sluice-coordinator"], keys), (["sluice", "plan"], keys - aside),
                              (["sluice", "simulate"], keys - aside)):
        text = subprocess.run([os.path.join(harness.BIN, program[0]), *program[1:], "--help"],
                              capture_output=True, text=True, check=True).stdout
        row = re.split(r"\n +--policy ", text)[1]
        row = re.split(r"\n(?: *-|\n)", row)[0]
        named = set(re.findall(r"[a-z-]+", row))
        assert expected <= named, (program, expected - named)
        assert not (keys - expected) & named, (program, row)
    refused = harness.sluice("plan", "--model", LLAMA, "--lengths", "1:1:1", "--policy",
                             "overlap=off", check=False).stderr
    assert all(f"{key}=" in refused for key in aside), refused
    with open(os.path.join(harness.TESTS, "..", "docs", "memory.md")) as f:
        table = "".join(line for line in f if line.startswith("| `"))
    assert not [key for key in keys if f"`{key}`" not in table]


def flags_of(program, *command):
    """(flag, twin, what help says of it) of each flag."""
    text = subprocess.run([os.path.join(harness.BIN, program), *command, "--help"],
                          capture_output=True, text=True, check=True).stdout
    prefix = program.upper().replace("-", "_") + "_"
    rows = re.split(r"\n(?=  (?:-\w, |    )--)", text.split("\n\nExample")[0])
    for row in rows[1:]:
        row = " ".join(row.split("\n\n")[0].split())
        flag = re.search(r"--([\w-]+)", row).group(1)
        if flag in ("help", "version"):
            continue
        named = re.search(r"\(environment: (\w+)\)", row)
        twin = named.group(1) if named else prefix + flag.upper().replace("-", "_")
        yield flag, twin, row


def test_a_twin_in_the_environment_has_one_meaning():
    seen = {}  # twin: {what is said: where}
    programs = [("sluice-coordinator",), ("sluice-worker",), *(("sluice", c) for c in COMMANDS)]
    for program in programs:
        flags = list(flags_of(*program))
        assert len(flags) >= 2, program
        for flag, twin, row in flags:
            seen.setdefault(twin, {}).setdefault(row, (program, flag))
    assert len(seen) > 80, len(seen)
    for twin, meanings in seen.items():
        assert len(meanings) == 1 or twin in ONE_MEANING, (twin, meanings)


def test_names_that_are_not_utf8_are_refused_before_they_are_sent():
    done = subprocess.run([os.path.join(harness.BIN, "sluice"), "submit", "-i", "x", "--name",
                           b"caf\xe9"], capture_output=True)
    assert done.returncode == 2 and b"is not UTF-8 at byte 4" in done.stderr, done


def test_a_model_directory_need_not_be_utf8():
    with tempfile.TemporaryDirectory(prefix="sluice-e2e-") as d:
        model = os.fsencode(d) + b"/caf\xe9"
        shutil.copytree(LLAMA, os.fsdecode(model))
        harness.write_lines(f"{d}/in", ['{"prompt": "In the", "max_tokens": 2}'])
        sluice = os.path.join(harness.BIN, "sluice")
        subprocess.run([sluice, "run", "--model", model, "-i", f"{d}/in", "-o", f"{d}/out",
                        "--host-memory", "1GiB"], check=True, capture_output=True,
                       timeout=300 * harness.SLOW)
        result = json.load(open(f"{d}/out"))
        assert result["response"]["body"]["model"] == "caf\\xe9", result
        with harness.Cluster(os.fsdecode(model), workers=1) as cluster:
            assert json.loads(cluster.sluice("cluster", "--json").stdout)["model"] == "caf\\xe9"
            job = cluster.submit(f"{d}/in")["id"]
            assert cluster.wait_for_end(job)["status"] == "completed"


def test_no_name_steers_the_terminal():
    with tempfile.TemporaryDirectory(prefix="sluice-e2e-") as d, \
            harness.Cluster(LLAMA, workers=0) as cluster:
        cluster.start_worker("w\x1b[2J\nfake")
        harness.write_lines(f"{d}/in", ['{"prompt": "In the", "max_tokens": 2}'])
        job = cluster.submit(f"{d}/in", "--name", "a\x1b[31m\rb\nc\u202ed\u009b")["id"]
        cluster.wait_for_end(job)
        shown = [cluster.sluice(*c) for c in (["list"], ["status", job], ["watch", job],
                                              ["cluster"], ["status", job, "--json"])]
        for text in (t for done in shown for t in (done.stdout, done.stderr)):
            bad = [c for c in text if (ord(c) < 32 and c != "\n") or c in "\x7f\u009b\u202e"]
            assert not bad, (bad, text)
        assert "a\\x1b[31m\\rb\\nc\\u202ed\\u009b" in shown[0].stdout, shown[0].stdout
        assert json.loads(shown[4].stdout)["name"] == "a\x1b[31m\rb\nc\u202ed\u009b"
        assert "\x1b" not in cluster.coordinator.log()


def test_no_answer_steers_the_terminal():
    echoed = "a\x7f\u009b2J\u202eb"
    with tempfile.TemporaryDirectory(prefix="sluice-e2e-") as d:
        harness.write_lines(f"{d}/in", [json.dumps(
            {"prompt": echoed, "max_tokens": 2, "echo": True}, ensure_ascii=False)])
        run = [os.path.join(harness.BIN, "sluice"), "run", "--model", LLAMA, "-q",
               "--host-memory", "512MiB", "-i", f"{d}/in", "-o", "-"]
        piped = subprocess.run(run, capture_output=True, text=True, check=True).stdout
        screen, terminal = os.openpty()
        process = subprocess.Popen(run, stdout=terminal)
        os.close(terminal)
        shown = b""
        try:
            while part := os.read(screen, 1 << 16):
                shown += part
        except OSError:  # the other end is closed
            pass
        os.close(screen)
        assert process.wait() == 0
    assert echoed in json.loads(piped)["response"]["body"]["choices"][0]["text"], piped
    assert "\u009b" in piped, "a file gets what the model says"
    text = shown.decode()
    assert not [c for c in text if c in "\x7f\u009b\u202e\x1b"], text
    choice, = json.loads(text)["response"]["body"]["choices"]
    assert choice == json.loads(piped)["response"]["body"]["choices"][0], (text, piped)


def test_refused_threads_or_memory_are_one_sentence():
    if harness.SANITIZED:
        return
    with tempfile.TemporaryDirectory(prefix="sluice-e2e-") as d:
        harness.write_lines(f"{d}/in", ['{"prompt": "In the", "max_tokens": 2}'])
        done = subprocess.run(
            ["sh", "-c", 'ulimit -v 300000; exec "$@"', "sh",
             os.path.join(harness.BIN, "sluice"), "run", "--model", LLAMA, "-q",
             "--host-memory", "64MiB", "-i", f"{d}/in", "-o", f"{d}/out"],
            capture_output=True, text=True)
    assert done.returncode == 1, done
    assert len(done.stderr.splitlines()) == 1 and "ulimit -v" in done.stderr, done


def test_followers_outlive_a_restart_of_the_coordinator():
    count = 300
    with tempfile.TemporaryDirectory(prefix="sluice-e2e-") as d, \
            harness.Cluster(LLAMA, workers=1, coordinator_flags=["--gbs", "2"]) as cluster:
        where = ("--coordinator", f"http://127.0.0.1:{cluster.port}/")
        harness.write_lines(f"{d}/in", harness.mixed_requests(count, max_tokens=40))
        submit = start(*where, "submit", "-i", f"{d}/in", "--wait", "-o", f"{d}/waited")
        job = harness.wait_for(
            lambda: cluster.sluice("list", "--json").stdout, "the job") and "job_1"
        watch = start(*where, "watch", job)
        results = start(*where, "results", job, "--follow", "-o", f"{d}/followed")
        # All three have heard of the job when some of it is done.
        harness.wait_for(lambda: cluster.status(job)["request_counts"]["completed"] > 0,
                         "a first answer")
        harness.wait_for(lambda: "job_1" in watch.stderr.readline(), "the watcher to see it")
        # Without a worker it cannot end before the restart.
        cluster.workers["worker-0"].kill9()
        assert cluster.status(job)["status"] == "in_progress"
        cluster.coordinator.kill9()
        time.sleep(1)
        assert all(p.poll() is None for p in (submit, watch, results))
        cluster.start_coordinator()
        cluster.start_worker("worker-0")
        for process in (submit, watch, results):
            out, err = process.communicate(timeout=300 * harness.SLOW)
            assert process.returncode == 0, (process.args, out, err)
            if process is not watch:
                assert err.count("the coordinator is away; trying again") <= 1, err
        for name in ("waited", "followed"):
            lines = [json.loads(line) for line in open(f"{d}/{name}")]
            assert [x["custom_id"] for x in lines] == [f"r{i}" for i in range(count)], name


def test_ctrl_c_ends_the_watcher_and_not_the_job():
    with tempfile.TemporaryDirectory(prefix="sluice-e2e-") as d, \
            harness.Cluster(LLAMA, workers=0) as cluster:
        harness.write_lines(f"{d}/in", ['{"prompt": "In the", "max_tokens": 2}'])
        job = cluster.submit(f"{d}/in")["id"]
        watch = start("--coordinator", f"127.0.0.1:{cluster.port}", "watch", job)
        harness.wait_for(lambda: job in watch.stderr.readline(), "the watcher to see it")
        watch.send_signal(signal.SIGINT)
        _, err = watch.communicate(timeout=60 * harness.SLOW)
        assert watch.returncode == 130, watch.returncode
        assert err.endswith(f"{job} goes on; follow it with: sluice watch {job}\n"), err
        cluster.start_worker("late")
        assert cluster.wait_for_end(job)["status"] == "completed"


def test_a_cancelled_job_ends_all_who_wait_for_it_alike():
    with tempfile.TemporaryDirectory(prefix="sluice-e2e-") as d, \
            harness.Cluster(LLAMA, workers=0) as cluster:
        harness.write_lines(f"{d}/in", ['{"prompt": "In the", "max_tokens": 2}'] * 3)
        where = ("--coordinator", f"127.0.0.1:{cluster.port}")
        quiet = harness.sluice(*where, "submit", "-q", "-i", f"{d}/in")
        assert quiet.stderr == "", quiet.stderr
        job = quiet.stdout.split()[0]
        cluster.sluice("cancel", job)
        cluster.wait_for_end(job)
        for command in (["watch", job], ["watch", job, "--json"]):
            done = cluster.sluice(*command, check=False)
            assert done.returncode == 3, done
            assert f"{job} was cancelled: 0 of 3 requests have answers" in done.stderr, done.stderr
        text = cluster.sluice("status", job).stdout
        assert "3 total, 0 completed, 0 failed, 3 cancelled, 0 running" in text, text


def daemon(program, *args, **environment):
    return subprocess.run([os.path.join(harness.BIN, program), *args], capture_output=True, text=True, stdin=subprocess.DEVNULL,
                          env={**os.environ, **environment}, timeout=60 * harness.SLOW)


def test_a_configuration_file_stands_under_flags_and_environment():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "coordinator.toml")

        def checked(text, *args, **environment):
            with open(path, "w") as f:
                f.write(text)
            done = daemon("sluice-coordinator", "--config", path, "--check-config", *args, **environment)
            return done.returncode, done.stdout, done.stderr.splitlines()[-1]

        good = f'model = "{LLAMA}"\nstate-dir = "{folder}/state"\nport = 0\n'
        code, out, _ = checked(good + "min-workers = 3\n")
        assert (code, out) == (0, "sluice-coordinator: the configuration is good\n"), (code, out)
        assert not os.path.exists(f"{folder}/state")
        for text, args, environment, says in (
                (good + "min-worker = 3\n", (), {}, f"--config {path}, line 4: unknown key min-worker; did you mean min-workers?"),
                (good + "min-workers = 0\n", (), {},
                 f"{path}, line 4: --min-workers: must be a whole number of at least 1, not 0"),
                (good + "min-workers = 3\n", (), {"SLUICE_COORDINATOR_MIN_WORKERS": "-1"},
                 "--min-workers: must be a whole number of at least 1, not -1"),
                (good + "min-workers = 3\n", ("--min-workers", "-2"), {"SLUICE_COORDINATOR_MIN_WORKERS": "1"},
                 "--min-workers: must be a whole number of at least 1, not -2"),
                (good + 'tls-cert = "/none.pem"\ntls-key = "/none.key"\n', (), {}, None),
                (good + "log-level = \"loud\"\n", (), {},
                 f'{path}, line 4: --log-level "loud" is none of debug, info, warning, error'),
                (good.replace(LLAMA, "/none"), (), {}, None)):
            code, out, said = checked(text, *args, **environment)
            assert code != 0 and out == "" and said.startswith("sluice-coordinator: "), (text, code, out, said)
            assert says is None and "/none" in said or said == f"sluice-coordinator: {says}", (text, said)
        done = daemon("sluice-worker", "--check-config", "--no-profile", "--host-memory", "64MiB",
                      SLUICE_WORKER_CONFIG=os.path.join(folder, "none.toml"))
        assert done.returncode == 2 and "none.toml" in done.stderr, done
        # A machine's workers have what the file says, too, but for what is their parent's.
        with open(path, "w") as f:
            f.write('all = true\nper = "2"\nhost-memory = "256MiB"\nno-profile = true\n')
        done = daemon("sluice-worker", "--config", path, "--dry-run")
        assert done.returncode == 0 and "128" in done.stdout, done
        done = daemon("sluice-worker", "--config", path, "--check-config")
        assert done.returncode == 0 and done.stdout.endswith("the configuration is good\n"), done


def test_a_hangup_has_the_log_level_read_again():
    with tempfile.TemporaryDirectory() as folder:
        path, log = os.path.join(folder, "coordinator.toml"), os.path.join(folder, "log")

        def write(level, more=""):
            with open(path, "w") as f:
                f.write(f'model = "{LLAMA}"\nstate-dir = "{folder}/state"\nport = 0\nmetrics-port = 0\n'
                        f'log-level = "{level}"\n{more}')

        def said():
            with open(log) as f:
                return f.read()

        write("info")
        with open(log, "w") as f:
            process = subprocess.Popen([os.path.join(harness.BIN, "sluice-coordinator"), "--config", path],
                                       stdout=subprocess.PIPE, stderr=f, text=True)
        try:
            assert process.stdout.readline().startswith("listening on"), said()
            write("nonsense")
            process.send_signal(signal.SIGHUP)
            harness.wait_for(lambda: '"nonsense" is none of' in said(), "what is wrong with the level")
            write("warning", "min-workers = 2\n")
            process.send_signal(signal.SIGHUP)
            harness.wait_for(lambda: "min-workers changed: it takes effect at the next start" in said(), "the change")
            write("warning", "unknown = 2\n")
            process.send_signal(signal.SIGHUP)
            harness.wait_for(lambda: "SIGHUP: nothing is changed" in said(), "the mistake")
            before = said()
            assert before.count("is read again") == 2, before
            process.send_signal(signal.SIGTERM)
            assert process.wait(60 * harness.SLOW) == 0
            # That it ends is information, which the level leaves out by now.
            assert "has ended" not in said()[len(before):], said()
        finally:
            process.kill()
            process.wait()


def test_help_and_version_are_commands_too():
    flag = harness.sluice("run", "--help").stdout
    assert harness.sluice("help", "run").stdout == flag
    assert harness.sluice("help").stdout == harness.sluice("--help").stdout
    assert harness.sluice("version").stdout == harness.sluice("--version").stdout
    wrong = harness.sluice("help", "runn", check=False)
    assert wrong.returncode == 2 and "did you mean 'run'" in wrong.stderr, wrong
    assert "takes its place when all results are there" in " ".join(
        harness.sluice("results", "--help").stdout.split())


def test_a_second_worker_on_a_machine_is_told_of_port_0():
    port = harness.free_port()
    with tempfile.TemporaryDirectory(prefix="sluice-e2e-") as d:
        args = [os.path.join(harness.BIN, "sluice-worker"), "--model", LLAMA, "--no-profile",
                "--coordinator", "127.0.0.1:1", "--host-memory", "512MiB", "--port", str(port),
                "--metrics-port", "0"]
        first = harness.Process(d, "first", args)
        try:
            first.wait_for_output("listening on")
            second = subprocess.run(args, capture_output=True, text=True,
                                    timeout=60 * harness.SLOW)
            assert second.returncode == 1, second
            assert "--port 0" in second.stderr, second.stderr
        finally:
            first.close()


if __name__ == "__main__":
    harness.run_tests(sys.modules[__name__])
