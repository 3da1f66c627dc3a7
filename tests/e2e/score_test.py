"""Scoring: prompts with echo and logprobs, and `sluice score`, against what
Hugging Face transformers computed (tests/golden/README.md)."""

import json
import os
import shutil
import sys
import tempfile

import harness

GOLDEN = os.path.join(harness.TESTS, "golden", "scores")
LLAMA = os.path.join(harness.MODELS, "llama-kjv")
# The largest error of a log-probability, and so about the relative one of a perplexity.
MAX_ERROR = 1e-4


def golden(name):
    with open(os.path.join(GOLDEN, f"{name}.json")) as f:
        return json.load(f)


def line(custom_id, prompt, **body):
    return json.dumps({"custom_id": custom_id, "method": "POST",
                       "url": "/v1/completions",
                       "body": {"prompt": prompt, **body}})


def choice(result):
    assert result["error"] is None, result
    return result["response"]["body"]["choices"][0]


def scoring_lines(count):
    """Prompts of many lengths, one in three with an answer to generate."""
    lines = []
    for i in range(count):
        prompt = " ".join(harness.PROMPTS[(i * 3 + k) % len(harness.PROMPTS)]
                          for k in range(1 + i * 5 % 37))
        lines.append(line(f"s{i}", prompt, echo=True, logprobs=i % 4,
                          max_tokens=0 if i % 3 else 4, temperature=0))
    return lines


def test_log_probabilities_are_hugging_faces():
    for name in ("llama-kjv", "opt-kjv"):
        data = golden(name)
        lines = []
        for i, case in enumerate(data["cases"]):
            scored = {"echo": True, "logprobs": 5, "max_tokens": 0}
            lines.append(line(f"ids-{i}", case["ids"], **scored))
            if case["text"]:
                lines.append(line(f"text-{i}", case["text"], **scored))
        _, results = harness.run(os.path.join(harness.TESTS, data["model"]),
                                 lines, "--dtype", "float32")
        assert len(results) == len(lines)
        worst = 0
        for result in results:
            kind, i = result["custom_id"].split("-")
            case = data["cases"][int(i)]
            body = result["response"]["body"]
            assert body["usage"] == {
                "prompt_tokens": len(case["ids"]), "completion_tokens": 0,
                "total_tokens": len(case["ids"])}, body["usage"]
            answer = body["choices"][0]
            assert answer["finish_reason"] == "length"
            logprobs = answer["logprobs"]
            assert {len(v) for v in logprobs.values()} == {len(case["ids"])}
            assert logprobs["token_logprobs"][0] is None
            assert logprobs["top_logprobs"][0] is None
            for p, expected in enumerate(case["logprobs"], 1):
                worst = max(worst, abs(logprobs["token_logprobs"][p] - expected))
                top = logprobs["top_logprobs"][p]
                assert logprobs["tokens"][p] in top
                best = max(top.values())
                worst = max(worst, abs(best - case["top_logprobs"][p - 1][0]))
            if kind == "text":
                assert answer["text"] == case["text"], answer["text"]
                check_offsets(answer)
        assert worst < MAX_ERROR, worst
        print(f"  {name}: max abs error {worst:.2g}")


def check_offsets(answer):
    """Tokens that are whole characters stand where their offsets say; special
    ones do not stand in the text."""
    logprobs = answer["logprobs"]
    for token, offset in zip(logprobs["tokens"][1:], logprobs["text_offset"][1:]):
        if not token.startswith(("<|", "bytes:")):
            assert answer["text"][offset:offset + len(token)] == token, (token, offset)


def test_the_split_changes_no_bit():
    lines = scoring_lines(40)
    _, expected = harness.run(LLAMA, lines, "--dtype", "float32")
    for flags in (["--max-step-tokens", "48", "--gbs", "7"],
                  ["--workers", "3", "--max-step-tokens", "33", "--gbs", "5",
                   "--num-microbatches", "2"],
                  ["--workers", "2", "--no-refill", "--gbs", "3"]):
        _, results = harness.run(LLAMA, lines, "--dtype", "float32", *flags)
        assert harness.answers(results) == harness.answers(expected), flags


def test_a_scored_prompt_may_be_continued():
    prompt = "And the LORD spake unto Moses, saying,"
    body = {"max_tokens": 6, "temperature": 0, "ignore_eos": True}
    _, results = harness.run(LLAMA, [
        line("both", prompt, echo=True, logprobs=2, **body),
        line("answer", prompt, logprobs=2, **body),
        line("prompt", prompt, echo=True, logprobs=2, max_tokens=0),
        line("echo", prompt, echo=True, **body),
        line("text", prompt, echo=True, max_tokens=0)], "--dtype", "float32")
    both, answer, scored, echo, text = map(choice, results)
    assert both["text"] == prompt + answer["text"] == echo["text"]
    assert scored["text"] == text["text"] == prompt
    assert echo["logprobs"] is None and text["logprobs"] is None
    for key in ("tokens", "token_logprobs", "top_logprobs"):
        assert both["logprobs"][key] == (
            scored["logprobs"][key] + answer["logprobs"][key]), key
    check_offsets(both)
    assert results[0]["response"]["body"]["usage"]["completion_tokens"] == 6


def test_a_workers_death_changes_nothing():
    lines = scoring_lines(60 if harness.SLOW > 1 else 400)
    _, expected = harness.run(LLAMA, lines, "--dtype", "float32")
    with harness.Cluster(LLAMA, workers=2, coordinator_flags=[
            "--dtype", "float32", "--max-step-tokens", "64", "--gbs", "4"]) as cluster:
        path = os.path.join(cluster.directory, "in.jsonl")
        harness.write_lines(path, lines)
        job = cluster.submit(path)["id"]
        harness.wait_for(lambda: cluster.status(job)["request_counts"]["completed"] > 5,
                         "some results")
        cluster.workers["worker-1"].kill9()
        del cluster.workers["worker-1"]
        assert cluster.status(job)["status"] != "completed", "the job was too short"
        cluster.start_worker("worker-2")
        assert cluster.wait_for_end(job)["status"] == "completed"
        assert harness.answers(cluster.results(job)) == harness.answers(expected)


def score(model, inputs, *flags, check=True, input=None):
    done = harness.sluice("score", "--model", model, "--input", *inputs,
                          "--host-memory", "1GiB", *flags, check=check,
                          input=input)
    return done


def figures(model, inputs, *flags, input=None):
    return json.loads(score(model, inputs, "--json", "-q", *flags,
                            input=input).stdout)


def test_perplexity_is_hugging_faces():
    for name in ("llama-kjv", "opt-kjv"):
        data = golden(name)
        model = os.path.join(harness.TESTS, data["model"])
        with tempfile.TemporaryDirectory(prefix="sluice-e2e-") as directory:
            inputs = []
            for i, text in enumerate(data["texts"]):
                inputs.append(os.path.join(directory, f"{i}.txt"))
                with open(inputs[-1], "w") as f:
                    f.write(text)
            for window in data["windows"]:
                got = figures(model, inputs, "--dtype", "float32",
                              "--context", str(window["context"]),
                              "--stride", str(window["stride"]),
                              "--bos", window["bos"])
                assert got["tokens_scored"] == window["tokens_scored"], (window, got)
                assert got["tokens"] == data["tokens"]
                error = abs(got["perplexity"] / window["perplexity"] - 1)
                assert error < MAX_ERROR, (window, got)
                error = abs(got["nll_nats"] / window["nll_nats"] - 1)
                assert error < MAX_ERROR, (window, got)
            # The default windows are the model's positions, disjoint, each behind a BOS.
            default = figures(model, inputs, "--dtype", "float32", "--workers", "2",
                              "--max-step-tokens", "100", "--gbs", "8")
            assert (default["context"], default["stride"]) == (512, 512)
            assert abs(default["perplexity"] / data["windows"][0]["perplexity"] - 1) < MAX_ERROR


def test_held_out_perplexity_is_the_models_readmes():
    if shutil.which("bible") is None:
        print("  skipped: needs Debian's bible-kjv")
        return
    sys.path.insert(0, harness.MODELS)
    import kjv
    _, held_out = kjv.split(kjv.load_chapters())
    for name in ("llama-kjv", "opt-kjv"):
        model = os.path.join(harness.MODELS, name)
        with open(os.path.join(model, "training.json")) as f:
            evaluation = find(json.load(f), "text_bytes")
        with tempfile.TemporaryDirectory(prefix="sluice-e2e-") as directory:
            inputs = []
            for chapter in held_out:
                inputs.append(os.path.join(directory, f"{chapter.index:04}.txt"))
                with open(inputs[-1], "w") as f:
                    f.write(chapter.text)
            got = figures(model, inputs, "--dtype", "float32")
        expected = evaluation["model"]
        assert got["tokens_scored"] == evaluation["tokens"]
        assert got["bytes"] == evaluation["text_bytes"]
        assert abs(got["perplexity"] / expected["perplexity"] - 1) < MAX_ERROR, got
        assert abs(got["bits_per_byte"] - expected["bits_per_byte"]) < 1e-4, got
        print(f"  {name}: perplexity {got['perplexity']:.4f}, "
              f"{got['bits_per_byte']:.4f} bits per byte")


def find(tree, key):
    """The object in `tree` that has `key`."""
    if isinstance(tree, dict):
        if key in tree:
            return tree
        tree = list(tree.values())
    if isinstance(tree, list):
        for item in tree:
            if found := find(item, key):
                return found
    return None


def test_a_text_from_stdin_for_people():
    text = "In the beginning God created the heaven and the earth.\n" * 40
    done = score(LLAMA, ["-"], "--context", "64", input=text)
    out = done.stdout.split("\n")
    assert out[0].startswith("perplexity ") and "+-" in out[0], out
    assert out[1].startswith("tokens scored ") and "windows of 64 (stride 64)" in out[1], out
    assert out[2].startswith("bits per byte "), out
    assert out[3].startswith("tokens/s "), out
    assert "windows" in done.stderr  # progress


def test_what_cannot_be_scored_is_told():
    with tempfile.TemporaryDirectory(prefix="sluice-e2e-") as directory:
        def file(name, data):
            path = os.path.join(directory, name)
            with open(path, "wb") as f:
                f.write(data)
            return path
        good = file("good.txt", b"In the beginning God created.")
        cases = [
            (["--input", os.path.join(directory, "none.txt")], 2, ["none.txt"]),
            (["--input", directory], 2, [directory]),
            (["--input", good, file("empty.txt", b"")], 2, ["empty.txt", "empty"]),
            (["--input", file("short.txt", b"a"), "--bos", "none"], 2,
             ["short.txt", "at least 2"]),
            (["--input", file("latin.txt", b"caf\xe9 au lait")], 2,
             ["latin.txt", "UTF-8", "byte 3"]),
            (["--input", good, "--context", "513"], 2, ["--context 513", "512"]),
            (["--input", good, "--context", "300", "--max-model-len", "200"], 2,
             ["--context 300", "200", "--max-model-len"]),
            (["--input", good, "--context", "1"], 2, ["--context 1", "2"]),
            (["--input", good, "--context", "-7"], 2, ["--context -7"]),
            (["--input", good, "--context", "8", "--stride", "9"], 2, ["--stride 9", "8"]),
            (["--input", good, "--stride", "600"], 2, ["--stride 600", "512"]),
            (["--input", good, "--stride", "-1"], 2, ["--stride -1"]),
            (["--input", good, "--bos", "last"], 2, ["--bos", "last"]),
            (["--input", good, "--dtype", "int3"], 2, ["int3"]),
            (["--input", good, "--host-memory", "1KiB"], 1, []),
            (["--input", good, "--model", os.path.join(directory, "no-model")], 2,
             ["no-model"]),
            ([], 2, ["--input"]),
        ]
        for flags, code, words in cases:
            if "--model" not in flags:
                flags = ["--model", LLAMA, *flags]
            done = harness.sluice("score", *flags, check=False)
            assert done.returncode == code, (flags, done.returncode, done.stderr)
            for word in words:
                assert word in done.stderr, (flags, word, done.stderr)
            assert done.stdout == "", done.stdout
        # One token behind BOS can be scored.
        assert figures(LLAMA, [file("a.txt", b"a")])["tokens_scored"] == 1


def test_a_long_scored_prompt_has_a_long_line():
    """The line is beyond what a message holds: it has 500 tokens with 20 alternatives each. There
    are many at once, by processes with links and messages between them."""
    prompt = [int(i * 7919 % 2000) for i in range(512)]
    lines = [line(f"s{i}", prompt[i:], echo=True, logprobs=20, max_tokens=0)
             for i in range(8 if harness.SLOW > 1 else 64)]
    _, expected = harness.run(LLAMA, lines, "--dtype", "float32")
    with harness.Cluster(LLAMA, workers=2, coordinator_flags=[
            "--dtype", "float32", "--max-step-tokens", "16384", "--gbs", "64"]) as cluster:
        path = os.path.join(cluster.directory, "in.jsonl")
        harness.write_lines(path, lines)
        job = cluster.submit(path)["id"]
        assert cluster.wait_for_end(job)["status"] == "completed"
        results = cluster.results(job)
        assert harness.answers(results) == harness.answers(expected)
        assert len(choice(results[0])["logprobs"]["top_logprobs"][1]) >= 20


if __name__ == "__main__":
    harness.run_tests(sys.modules[__name__])
