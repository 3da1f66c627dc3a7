"""Tables in and out: CSV and TSV, their rows beside the answers, compressed or not."""

import csv
import gzip
import json
import os
import random
import signal
import subprocess
import sys

import harness
import plan_test
import resume_test

LLAMA = os.path.join(harness.MODELS, "llama-kjv")
FLAGS = ("--model", LLAMA, "--dtype", "float32", "--host-memory", "512MiB", "--max-tokens", "2", "-q")
ADDED = ["answer", "finish_reason", "error"]
PIECES = ["In the beginning", "say \"Verily\"", "a, b; c", "two\nlines", "and\r\nmore", "Καλημέρα κόσμε", "日本語の文",
          "", " spaces ", "tab\there", "'single'", "{braces}"]


def table(count, seed=1):
    """Rows with quotes, separators, line ends and three scripts."""
    rng = random.Random(seed)
    return [[f"r{i}", rng.choice(PIECES), " ".join(rng.choice(PIECES) for _ in range(rng.randint(1, 4))) + f" {i}"]
            for i in range(count)]


def write(path, header, rows, **dialect):
    with open(path, "w", newline="") as f:
        csv.writer(f, **dialect).writerows([header, *rows])


def read(path, delimiter=",", opener=open):
    with opener(path, "rt", newline="", encoding="utf-8") as f:
        header, *rows = csv.reader(f, delimiter=delimiter)
    return header, rows


def csv_lines(text):
    """The text of each row: that after which all quotes are closed."""
    rows = [""]
    for line in text.split("\n"):
        rows[-1] += line + "\n"
        if rows[-1].count('"') % 2 == 0:
            rows.append("")
    return rows


def run(source, target, *flags, prompt="{text}", **kwargs):
    return harness.sluice("run", *FLAGS, "-i", source, "-o", target, *(("--prompt", prompt) if prompt else ()), *flags,
                          **kwargs)


def refused(words, *args, code=2, **kwargs):
    done = run(*args, check=False, **kwargs)
    assert done.returncode == code, (done.returncode, done.stderr)
    assert all(word in done.stderr for word in words), (words, done.stderr)


def zstd(data):
    """A zstd frame whose blocks are not compressed."""
    frame = b"\x28\xb5\x2f\xfd\x00\x58"  # a window of 2 MiB
    blocks = [data[i:i + 100_000] for i in range(0, len(data), 100_000)] or [b""]
    for i, block in enumerate(blocks):
        frame += (len(block) << 3 | (i == len(blocks) - 1)).to_bytes(3, "little") + block
    return frame


def test_every_row_comes_back_with_its_answer(directory):
    source, target = f"{directory}/reviews.csv", f"{directory}/labels.csv"
    rows = table(300)
    write(source, ["custom_id", "extra", "text"], rows)
    run(source, target)
    header, answers = read(target)
    assert header == ["custom_id", "extra", "text", *ADDED]
    assert [row[:3] for row in answers] == rows
    assert all(row[3] and row[4] in ("stop", "length") and not row[5] for row in answers), answers
    # The same prompts as JSON lines have the same answers.
    run(source, f"{directory}/answers.jsonl")
    lines = [json.loads(line) for line in open(f"{directory}/answers.jsonl")]
    assert [line["custom_id"] for line in lines] == [row[0] for row in rows]
    assert [line["response"]["body"]["choices"][0]["text"] for line in lines] == [row[3] for row in answers]
    _, expected = harness.run(LLAMA, [json.dumps({"prompt": row[2]}) for row in rows], *FLAGS[2:4], "--max-tokens", "2")
    assert [line["response"]["body"]["choices"] for line in expected] == [
        line["response"]["body"]["choices"] for line in lines]


def test_dialects(directory):
    rows = table(20, seed=2)
    expected = None
    for name, flags, dialect in (("a.csv", (), {}), ("b.tsv", (), {"delimiter": "\t"}),
                                 ("c.csv", ("--delimiter", ";"), {"delimiter": ";", "lineterminator": "\n"}),
                                 ("d", ("--input-format", "tsv"), {"dialect": "excel-tab"}),
                                 ("e.dat", ("--input-format", "csv", "--delimiter", "\\t"), {"delimiter": "\t"})):
        source, target = f"{directory}/{name}", f"{directory}/{name}.out.tsv"
        write(source, ["id", "x", "text"], rows, **dialect)
        if name == "a.csv":
            with open(source, "rb") as f:
                marked = b"\xef\xbb\xbf" + f.read()
            with open(source, "wb") as f:
                f.write(marked)
        run(source, target, "--id-column", "id", *flags, prompt="{{{id}}} {text}")
        header, answers = read(target, "\t")
        assert header == ["id", "x", "text", *ADDED] and [row[:3] for row in answers] == rows, name
        expected = expected or answers
        assert answers == expected, name


def test_bad_rows_are_errors_and_the_others_are_answered(directory):
    source, target = f"{directory}/in.csv", f"{directory}/out.csv"
    with open(source, "wb") as f:
        f.write(b'custom_id,text,error\na,one,\nb,"two\nlines"\nc,three,x,y\nd,caf\xe9,\ne,"f"ive,\na,six,\nlast,"s,n",z\n')
    run(source, target)
    header, rows = read(target)
    assert header == ["custom_id", "text", "error", "answer", "finish_reason", "sluice_error"]
    assert [row[:3] for row in rows] == [
        ["a", "one", ""], ["b", "two\nlines", ""], ["c", "three", "x"], ["d", "caf\ufffd", ""], ["e", "five", ""],
        ["a", "six", ""], ["last", "s,n", "z"]]
    assert [bool(row[3]) for row in rows] == [True, False, False, False, False, False, True]
    errors = [row[5] for row in rows]
    for error, words in zip(errors, ("", "invalid_row: line 3: the row has 2 fields", "line 5: the row has 4",
                                     "invalid_utf8: line 6", "line 7: text stands behind", "line 2 already", "")):
        assert words in error and bool(words) == bool(error), (words, error)
    # Errors may have a file of their own, in a form of its own.
    run(source, target, "--errors", f"{directory}/errors.jsonl")
    assert [row[0] for row in read(target)[1]] == ["a", "last"]
    with open(f"{directory}/errors.jsonl") as f:
        assert [json.loads(line)["error"]["line"] for line in f] == [3, 5, 6, 7, 8]


def test_what_is_no_table_stops_before_anything_is_computed(directory):
    source, target = f"{directory}/in.csv", f"{directory}/out.csv"
    for content, words in ((b"id,label\n1,2\n", ["in.csv", "line 1", 'no column "text"', '"id", "label"']),
                           (b"text\nx\n\"y\nz\n", ["line 3", "never closed"]),
                           (b"text;id\nx;1\n", ["--delimiter"]), (b"text\n", ["no rows"]),
                           (b"\xff\xfet\x00", ["UTF-16"]), (b"PK\x03\x04", ["ZIP"])):
        with open(source, "wb") as f:
            f.write(content)
        refused(words, source, target)
        assert os.listdir(directory) == ["in.csv"], os.listdir(directory)
    write(source, ["text"], [["x"]])
    refused(["names no column"], source, target, prompt="the same")
    refused(["a { that no } closes"], source, target, prompt="{text")
    refused(["no column \"prompt\"", "--prompt"], source, target, prompt=None)
    refused(["is not one ASCII character"], source, target, "--delimiter", ";;")
    refused(["none of auto, jsonl, csv, tsv"], source, target, "--output-format", "xml")
    os.rename(source, f"{directory}/in.jsonl")
    refused(["are for tables", "jsonl"], f"{directory}/in.jsonl", target)


def test_chats_and_other_inputs(directory):
    source, target = f"{directory}/in.csv", f"{directory}/out.csv"
    write(source, ["q"], [["Who?"], ["Where?"]])
    run(source, f"{directory}/chat.jsonl", "--system", "Be brief.", prompt="Answer: {q}")
    with open(f"{directory}/chat.jsonl") as f:
        assert ["chat.completion"] * 2 == [json.loads(line)["response"]["body"]["object"] for line in f]
    run(source, target, "--chat", prompt="{q}")
    assert [row[0] for row in read(target)[1]] == ["Who?", "Where?"]
    # JSON lines and text have no rows: the custom_id comes first.
    harness.write_lines(f"{directory}/in.jsonl", ['{"prompt": "In the", "custom_id": "k"}', "no JSON"])
    run(f"{directory}/in.jsonl", target, prompt=None)
    header, rows = read(target)
    assert header == ["custom_id", *ADDED] and rows[0][0] == "k" and "invalid_json: line 2" in rows[1][3], rows
    # By a pipe and to a pipe, too.
    with open(source) as f:
        done = run("-", "-", "--output-format", "tsv", prompt="{q}", input=f.read())
    lines = list(csv.reader(done.stdout.splitlines(), delimiter="\t"))
    assert lines[0] == ["q", *ADDED] and [line[0] for line in lines[1:]] == ["Who?", "Where?"], lines


def test_killed_and_started_again_the_table_is_the_same(directory):
    with resume_test.Place() as place:
        rows = table(400, seed=3)
        place.input, place.output = place.path("in.csv"), place.path("out.csv")
        place.state = place.output + ".sluice"
        write(place.input, ["id", "answer", "text"], rows)
        flags = ("--prompt", "{text}", "--max-tokens", "8")
        place.run("-q", *flags, output=place.path("whole.csv"))
        whole = read(place.path("whole.csv"))
        assert whole[0] == ["id", "answer", "text", "sluice_answer", "finish_reason", "error"]
        assert [row[:3] for row in whole[1]] == rows
        for stop in ("kill", "terminate"):
            process = place.start(*flags)
            place.wait_for_answers(process, len(place.stored()) + 20)
            getattr(process, stop)()
            process.communicate()
            assert not os.path.exists(place.output)
        # Another prompt is another job.
        _, err = place.run("--prompt", "x {text}", "--max-tokens", "8", code=2)
        assert "--prompt was {text} and is x {text}" in err, err
        _, err = place.run(*flags)
        assert "resuming: " in err and read(place.output) == whole, err
        assert place.names() == ["in.csv", "out.csv", "whole.csv"]
        # The rows of a pipe are kept until they stand beside their answers.
        place.output = place.path("piped.csv")
        for attempt in range(2):
            with open(place.input, "rb") as f:
                process = subprocess.Popen(
                    [os.path.join(harness.BIN, "sluice"), "run", "-i", "-", "-o", place.output, *FLAGS[:-3],
                     *resume_test.FLAGS[-4:], "--input-format", "csv", *flags], stdin=f if attempt else subprocess.PIPE,
                    stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
                if not attempt:
                    process.stdin.write(f.read())
                    process.stdin.close()
                    place.state = place.output + ".sluice"
                    place.wait_for_answers(process, 20)
                    process.kill()
                error = process.stderr.read()
                process.stderr.close()
                assert process.wait() == (0 if attempt else -9), error
        assert read(place.output) == whole
        assert place.names() == ["in.csv", "out.csv", "piped.csv", "whole.csv"]


def test_a_file_that_changed_is_not_joined(directory):
    with resume_test.Place() as place:
        place.input, place.output = place.path("in.csv"), place.path("out.csv")
        place.state = place.output + ".sluice"
        rows = [[i, "x" * 1000, text] for i, _, text in table(300, seed=4)]
        write(place.input, ["id", "x", "text"], rows)
        with open(place.input, "rb") as f:
            original = f.read()
        flags = ("--prompt", "{text}", "--max-tokens", "8")
        process = place.start(*flags)
        place.wait_for_answers(process, 10)
        process.send_signal(signal.SIGSTOP)
        assert len(place.stored()) < 200, "too late: all of the file may have been read"
        with open(place.input, "r+b") as f:
            f.seek(-1100, os.SEEK_END)
            f.write(b"y")  # as long as before
        process.send_signal(signal.SIGCONT)
        _, err = process.communicate()
        assert process.returncode == 1 and "in.csv is not the file that the job was made of" in err, err
        assert not os.path.exists(place.output) and "run the same command again" in err, err
        with open(place.input, "wb") as f:
            f.write(original)
        place.run(*flags)
        assert [row[:3] for row in read(place.output)[1]] == rows


def test_jobs_of_a_coordinator(directory):
    source, target = f"{directory}/in.csv", f"{directory}/out.csv"
    rows = table(40, seed=5)
    write(source, ["custom_id", "x", "text"], rows)
    with open(source, "rb") as f:
        content = f.read()
    with open(f"{directory}/in.csv.gz", "wb") as f:
        f.write(gzip.compress(content))
    with harness.Cluster(LLAMA, workers=1, coordinator_flags=("--input-root", directory)) as cluster:
        flags = ("--prompt", "{text}", "--max-tokens", "2")
        cluster.sluice("submit", "-i", source, *flags, "-w", "-q", "-o", target)
        whole = read(target)
        assert whole[0] == ["custom_id", "x", "text", *ADDED] and [row[:3] for row in whole[1]] == rows
        job = cluster.submit(f"{directory}/in.csv.gz", *flags)["id"]
        cluster.wait_for_end(job)
        for name in ("in.csv", "in.csv.gz"):
            cluster.sluice("results", job, "-i", f"{directory}/{name}", "-o", target)
            assert read(target) == whole, name
        # In two parts, with one header.
        cut = f"{directory}/cut.csv"
        with open(target, encoding="utf-8", newline="") as f:
            text = f.read()
        head = "".join(line for line in csv_lines(text)[:31])
        with open(cut, "w", encoding="utf-8", newline="") as f:
            f.write(head)
        cluster.sluice("results", job, "-i", source, "--offset", "30", "--append", "-o", cut)
        assert read(cut) == whole
        # Without the rows.
        cluster.sluice("results", job, "-o", cut)
        header, answers = read(cut)
        assert header == ["custom_id", *ADDED] and [row[0] for row in answers] == [row[0] for row in rows]
        assert [row[1:] for row in answers] == [row[3:] for row in whole[1]]
        # The file is on the coordinator.
        job = cluster.submit("in.csv.gz", "--server-path", "--input-format", "csv", *flags)["id"]
        assert cluster.wait_for_end(job)["request_counts"]["completed"] == len(rows)
        # Refusals.
        for args, words in (((job, "-i", source, "-o", f"{directory}/x.jsonl"), "goes with CSV"),
                            ((job, "-i", "-", "-o", target), "is no file")):
            done = cluster.sluice("results", *args, check=False)
            assert done.returncode == 2 and words in done.stderr, done.stderr
        with open(source, "ab") as f:
            f.write(b"one,more,row\n")
        done = cluster.sluice("results", job, "-i", source, "-o", f"{directory}/new.csv", check=False)
        assert done.returncode == 1 and "is not the file that the job was made of" in done.stderr, done.stderr
        assert not os.path.exists(f"{directory}/new.csv")
        done = cluster.sluice("submit", "-i", "-", "--input-format", "csv", *flags, "-w", "-o", target, check=False,
                              input="text\nx\n")
        assert done.returncode == 2 and "is no file" in done.stderr, done.stderr


def test_compressed_files(directory):
    rows = table(60, seed=6)
    plain, target = f"{directory}/in.csv", f"{directory}/plain.csv"
    write(plain, ["id", "x", "text"], rows)
    run(plain, target)
    whole = read(target)
    with open(plain, "rb") as f:
        data = f.read()
    third = len(data) // 3
    parts = data[:third], data[third:2 * third], data[2 * third:]
    for name, content in (("one.csv.gz", gzip.compress(data)), ("members.csv.gz", b"".join(map(gzip.compress, parts))),
                          ("one.csv.zst", zstd(data)), ("frames.csv.ZST", b"".join(map(zstd, parts))),
                          ("misnamed.csv", gzip.compress(data))):
        with open(f"{directory}/{name}", "wb") as f:
            f.write(content)
        run(f"{directory}/{name}", f"{directory}/out.csv.gz")
        assert read(f"{directory}/out.csv.gz", opener=gzip.open) == whole, name
    # What is written in zstd reads as an input.
    run(plain, f"{directory}/again.csv.zst")
    run(f"{directory}/again.csv.zst", f"{directory}/last.csv")
    header, last = read(f"{directory}/last.csv")
    assert [row[:6] for row in last] == whole[1] and header[:6] == whole[0], header
    # Cut, corrupt, and followed by something else.
    packed = gzip.compress(data)
    spoilt = bytearray(packed)
    spoilt[-6] ^= 1  # of the checksum
    middle = bytearray(zstd(data))
    middle[4] = 0xff
    for name, content, words in (("cut.csv.gz", packed[:-9], "ends too early"), ("cut.csv.zst", zstd(data)[:-5], "too early"),
                                 ("bad.csv.gz", bytes(spoilt), "damaged"), ("bad.csv.zst", bytes(middle), "damaged"),
                                 ("more.csv.gz", packed + b"junk", "damaged")):
        with open(f"{directory}/{name}", "wb") as f:
            f.write(content)
        refused([name, words], f"{directory}/{name}", f"{directory}/none.csv", code=2)
        assert not os.path.exists(f"{directory}/none.csv")


def test_a_decompression_bomb_meets_the_limit_of_a_line(directory):
    packed = gzip.compress(b"a" * (1 << 20))
    with open(f"{directory}/bomb.csv.gz", "wb") as f:
        f.write(gzip.compress(b"text\nbefore\n"))
        for _ in range(300):
            f.write(packed)
        f.write(gzip.compress(b"\nbehind\n"))
    process = subprocess.Popen([os.path.join(harness.BIN, "sluice"), "run", *FLAGS, "-i", f"{directory}/bomb.csv.gz", "-o",
                                f"{directory}/out.csv", "--prompt", "{text}"])
    _, code, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(code)
    assert process.returncode == 0
    _, rows = read(f"{directory}/out.csv")
    assert [row[0] for row in rows] == ["before", "", "behind"], rows
    assert "line_too_long: line 3: the row is longer than 16777216 bytes" in rows[1][3], rows
    if not harness.SANITIZED:
        assert usage.ru_maxrss < 250 << 10, usage.ru_maxrss  # of 300 MiB


def test_plans_read_tables_as_runs_do(directory):
    source = f"{directory}/in.csv.gz"
    write(f"{directory}/in.csv", ["id", "x", "text"], table(20, seed=7))
    with open(f"{directory}/in.csv", "rb") as f, open(source, "wb") as packed:
        packed.write(gzip.compress(f.read()))
    harness.write_lines(f"{directory}/in.jsonl", [json.dumps({"prompt": "x " + row[2]}) for row in table(20, seed=7)])
    with open(f"{directory}/profile.json", "w") as f:
        json.dump(plan_test.PROFILE, f)
    flags = ("--model", LLAMA, "--max-tokens", "4", "--json", "--profile", f"{directory}/profile.json")
    for command in ("plan", "simulate"):
        plans = [json.loads(harness.sluice(command, "-i", path, *flags, *more).stdout)
                 for path, more in ((source, ("--prompt", "x {text}")), (f"{directory}/in.jsonl", ()))]
        assert plans[0] == plans[1], plans
    done = harness.sluice("plan", "-i", source, *flags, "--prompt", "{name}", check=False)
    assert done.returncode == 2 and 'no column "name"' in done.stderr, done.stderr


def test_many_rows_take_little_memory(directory):
    source, target = f"{directory}/in.csv.gz", f"{directory}/out.csv.gz"
    count = 3000 // harness.SLOW
    rows = table(count, seed=8)
    with gzip.open(source, "wt", newline="") as f:
        csv.writer(f).writerows([["custom_id", "x", "text"], *rows])
    run(source, target)
    header, answers = read(target, opener=gzip.open)
    assert [row[:3] for row in answers] == rows and not any(row[5] for row in answers)


harness.give_directories(globals())

if __name__ == "__main__":
    harness.run_tests(sys.modules[__name__])
