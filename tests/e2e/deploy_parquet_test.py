"""sluice-parquet: each row of a table has its answer beside it, once and in order, and what is wrong is said."""

import json
import os
import shutil
import subprocess
import sys

import deploy_support as support
import harness

LLAMA = os.path.join(harness.MODELS, "llama-kjv")
TABLE = """
import sys, datetime, pyarrow as pa, pyarrow.parquet as pq
n = int(sys.argv[2])
words = ["The LORD is", "And it came", "Behold", None, "A {wise} man"]
pq.write_table(pa.table({
    "id": pa.array(range(n), pa.int32()), "text": [words[i % 5] for i in range(n)], "score": [i / 4 for i in range(n)],
    "day": [datetime.date(2026, 1, 1 + i % 28) for i in range(n)], "list": [[i] for i in range(n)]}), sys.argv[1],
    row_group_size=7)
"""
SHOW = """
import json, sys, pyarrow.parquet as pq
file = pq.ParquetFile(sys.argv[1])
print(json.dumps({"groups": [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)],
                  "rows": file.read().to_pylist()}, default=str))
"""


class Tables:
    """The tool as the wheel installs it, beside the programs of the build, and pyarrow."""

    def __init__(self, directory):
        self.directory = directory
        self.python = support.pip_program("pyarrow", "python")
        package = os.path.join(directory, "package", "sluice")
        shutil.copytree(os.path.join(support.DEPLOY, "wheel", "sluice"), package)
        os.symlink(harness.BIN, os.path.join(package, "bin"))

    def path(self, name):
        return os.path.join(self.directory, name)

    def call(self, *words, **more):
        return subprocess.run([self.python, "-m", "sluice.parquet", *words], capture_output=True, text=True, timeout=300,
                              env={**os.environ, "PYTHONPATH": self.path("package")}, **more)

    def make(self, name, rows):
        support.command(self.python, "-c", TABLE, self.path(name), str(rows))
        return self.path(name)

    def show(self, path):
        return json.loads(support.command(self.python, "-c", SHOW, path))


def test_each_row_has_its_answer_once_and_in_order(directory):
    tables = Tables(directory)
    source, target = tables.make("in.parquet", 23), tables.path("out.parquet")
    prompt = "{text} {{{id}}} {score} {day}"
    done = tables.call("run", source, "-o", target, "--prompt", prompt, "--model", LLAMA, "--max-tokens", "4",
                       "--temperature", "0", "--host-memory", "512MiB", "-q")
    assert done.returncode == 0, done
    assert sorted(os.listdir(directory)) == ["in.parquet", "out.parquet", "package"], os.listdir(directory)
    before, after = tables.show(source), tables.show(target)
    assert after["groups"] == before["groups"] == [7, 7, 7, 2], after["groups"]
    asked = {f"row-{i}": f"{row['text']} {{{row['id']}}} {row['score']} {row['day']}"
             for i, row in enumerate(before["rows"]) if row["text"] is not None}
    _, results = harness.run(LLAMA, [json.dumps({"custom_id": name, "prompt": text}) for name, text in asked.items()],
                             "--max-tokens", "4", "--temperature", "0")
    wanted = {r["custom_id"]: r["response"]["body"] for r in results}
    for i, (old, new) in enumerate(zip(before["rows"], after["rows"], strict=True)):
        added = {k: new.pop(k) for k in ("answer", "finish_reason", "prompt_tokens", "completion_tokens", "error")}
        assert new == old, (new, old)
        if old["text"] is None:
            assert added["answer"] is None and added["error"], added
            continue
        body = wanted[f"row-{i}"]
        assert added == {"answer": body["choices"][0]["text"], "finish_reason": body["choices"][0]["finish_reason"],
                         "prompt_tokens": body["usage"]["prompt_tokens"],
                         "completion_tokens": body["usage"]["completion_tokens"], "error": None}, added


def test_requests_go_through_a_pipe_and_answers_come_from_a_file(directory):
    tables = Tables(directory)
    source, target = tables.make("in.parquet", 10), tables.path("out.parquet")
    asked = tables.call("requests", source, "--prompt", "Say {text}")
    assert asked.returncode == 0 and len(asked.stdout.splitlines()) == 10, asked
    answers = tables.path("answers.jsonl")
    piped = subprocess.run([os.path.join(harness.BIN, "sluice"), "run", "-q", "--model", LLAMA, "-i", "-", "-o", answers, "--chat",
                            "--max-tokens", "3", "--host-memory", "512MiB"], input=asked.stdout, text=True, capture_output=True)
    assert piped.returncode == 0, piped
    done = tables.call("answers", source, answers, "-o", target, "--prefix", "sluice_")
    assert done.returncode == 0, done
    rows = tables.show(target)["rows"]
    assert [row["id"] for row in rows] == list(range(10)), rows
    assert [row["sluice_answer"] is None for row in rows] == [row["text"] is None for row in rows], rows
    # Twice: the second time its own columns are there.
    again = tables.call("answers", target, answers, "-o", target, "--prefix", "sluice_")
    assert again.returncode == 2 and "has a column sluice_answer already" in again.stderr, again


def test_what_is_wrong_is_said_and_nothing_is_written(directory):
    tables = Tables(directory)
    source, target, answers = tables.make("in.parquet", 3), tables.path("out.parquet"), tables.path("answers.jsonl")

    def refused(*words):
        done = tables.call(*words)
        assert done.returncode == 2 and not os.path.exists(target) and "Traceback" not in done.stderr, done
        return done.stderr

    def joined(*lines):
        harness.write_lines(answers, lines)
        return refused("answers", source, answers, "-o", target)

    def answer(i):
        return json.dumps({"custom_id": f"row-{i}", "error": {"message": "no"}})
    assert "there is no column {tex}; the columns are id, text, score, day, list" in refused("requests", source, "--prompt", "{tex}")
    assert "there is no column {text:>9}" in refused("requests", source, "--prompt", "{text:>9}")
    assert "there is no column {}" in refused("requests", source, "--prompt", "{}")
    assert "a brace that is meant as such is written twice" in refused("requests", source, "--prompt", "{text")
    assert "no column is named" in refused("requests", source, "--prompt", "text")
    assert "column list is list" in refused("requests", source, "--prompt", "{list}")
    assert "cannot be read as Parquet" in refused("requests", __file__, "--prompt", "{text}")
    assert "unknown: --model" in refused("requests", source, "--prompt", "{text}", "--model", "x")
    assert f"{answers} ends before row 2" in joined(answer(0), answer(1))
    assert f"{answers}, line 2: custom_id is 'row-2', not 'row-1'" in joined(answer(0), answer(2), answer(1))
    assert f"{answers}, line 3: no answer as sluice writes it" in joined(answer(0), answer(1), '{"custom_id": "row-2"}')
    assert "has more lines than" in joined(*(answer(i) for i in range(4)))
    assert f"{tables.path('none')}: No such file" in refused("answers", source, tables.path("none"), "-o", target)
    assert "No such file" in refused("answers", source, answers, "-o", tables.path("none/out.parquet"))
    # What sluice run says stays, with its exit code.
    done = tables.call("run", source, "-o", target, "--prompt", "{text}", "--model", "/none")
    assert done.returncode == 2 and "/none" in done.stderr and not os.path.exists(target), done
    # A reader that goes early.
    done = subprocess.run(f"{tables.python} -m sluice.parquet requests {tables.make('big.parquet', 50000)} --prompt '{{id}}' | "
                          "head -1", shell=True, capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": tables.path("package")})
    assert done.stdout == '{"custom_id": "row-0", "prompt": "0"}\n' and done.stderr == "", done


if __name__ == "__main__":
    harness.give_directories(globals())
    harness.run_tests(sys.modules[__name__])
