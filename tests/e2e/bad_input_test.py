"""Bad lines among good ones: each gets its own error, each good one its
answer."""

import json
import os
import sys

import harness

LLAMA = os.path.join(harness.MODELS, "llama-kjv")


def line(body, custom_id="x", url="/v1/completions", **more):
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": url,
                       "body": body, **more})


def good(i):
    return line({"prompt": f"And God said, {i}", "max_tokens": 3}, f"good-{i}")


# (line, words that its error must contain)
BAD = [
    ("this is not JSON", ["JSON"]),
    ('{"custom_id": "cut", "method": "POST"', ["JSON"]),
    ('["a list"]', ["object"]),
    ("", ["empty"]),
    ("   ", ["empty"]),
    (line({"prompt": 7}, "b1"), ["prompt"]),
    (line({"prompt": "x", "max_tokens": "many"}, "b2"), ["max_tokens"]),
    (line({"max_tokens": 5}, "b3"), ["prompt"]),
    (line({"messages": []}, "b4", "/v1/chat/completions"), ["messages"]),
    (line({"messages": [{"role": "user"}]}, "b5", "/v1/chat/completions"), ["content"]),
    (line({"prompt": "x"}, "good-0"), ["custom_id", "good-0"]),
    (line({"prompt": "word " * 3000, "max_tokens": 5}, "b6"), ["long"]),
    (line({"prompt": "x", "max_tokens": 100000}, "b7"), ["max_tokens"]),
    (line({"prompt": "x", "model": "gpt-17"}, "b8"), ["model", "gpt-17"]),
    (line({"prompt": "x", "temperature": -1}, "b9"), ["temperature"]),
    (line({"prompt": "x", "top_p": 1.5}, "b10"), ["top_p"]),
    (line({"prompt": "x", "presence_penalty": 3}, "b11"), ["presence_penalty"]),
    (line({"prompt": "x", "logit_bias": {"999999999": 1}}, "b12"), ["logit_bias"]),
    (line({"prompt": "x", "n": 200}, "b13"), ["n", "128"]),
    (line({"prompt": "x", "stream": True}, "b14"), ["stream"]),
    (line({"prompt": "x", "frobnicate": 1}, "b15"), ["frobnicate"]),
    (line({"prompt": "x"}, "b16", "/v1/frobnicate"), ["/v1/frobnicate"]),
    (json.dumps({"custom_id": "b17", "method": "GET", "url": "/v1/completions",
                 "body": {"prompt": "x"}}), ["method"]),
    (json.dumps({"custom_id": "b18", "method": "POST", "url": "/v1/completions"}), ["body"]),
    (json.dumps({"method": "POST", "url": "/v1/completions", "body": {"prompt": "x"}}),
     ["custom_id"]),
    (b'{"custom_id": "b19", "method": "POST", "url": "/v1/completions", '
     b'"body": {"prompt": "bad \xff\xfe utf-8"}}', ["UTF-8"]),
    (b'{"custom_id": "b20", "method": "POST", "url": "/v1/completions", '
     b'"body": {"prompt": "nul \x00 byte"}}', []),
    ('{"custom_id": "huge", "method": "POST", "url": "/v1/completions", '
     '"body": {"prompt": "' + "a" * (20 << 20) + '"}}', ["long"]),
    ('{"custom_id": "deep", "body": ' + "[" * 100000 + "]" * 100000 + "}", []),
    (line({"prompt": "x", "temperature": 1e400}, "inf").replace("Infinity", "1e400"), []),
    (line({"prompt": ["several", 7]}, "b21"), ["prompt"]),
    (line({"prompt": []}, "b25"), ["prompt"]),
    (line({"prompt": [1, 2, 99999999]}, "b22"), ["prompt"]),
    (line({"prompt": "x", "seed": "seven"}, "b23"), ["seed"]),
    (line({"prompt": "x", "stop": [""]}, "b24"), ["stop"]),
]


def test_each_bad_line_has_its_error_and_each_good_one_its_answer():
    lines, expected = [], {}
    for i, (bad, words) in enumerate(BAD):
        lines.append(good(i))
        lines.append(bad)
        expected[len(lines)] = words  # line numbers count from 1
    lines.append(good(len(BAD)))
    figures, results = harness.run(LLAMA, lines)
    assert len(results) == len(lines), (len(results), len(lines))
    assert figures["completed"] == len(BAD) + 1, figures
    assert figures["failed"] == len(BAD), figures
    for number, result in enumerate(results, 1):
        if number not in expected:
            assert result["error"] is None, (number, result)
            choice = result["response"]["body"]["choices"][0]
            assert choice["finish_reason"] in ("length", "stop")
            continue
        error = result["error"]
        assert error, f"line {number} should be an error: {str(result)[:500]}"
        body = result["response"]["body"]["error"]
        assert result["response"]["status_code"] == 400, result["response"]
        assert {k: body[k] for k in ("code", "message", "param")} == {
            k: error[k] for k in ("code", "message", "param")}, result
        assert error["line"] == number and f"line {number}" in error["message"], error
        for word in expected[number]:
            assert word.lower() in error["message"].lower(), (number, word, error["message"])
        assert len(error["message"]) < 2000, "an error must not echo a huge line"


def test_errors_can_go_to_a_file_of_their_own():
    import tempfile
    with tempfile.TemporaryDirectory() as d:
        harness.write_lines(f"{d}/in", [good(0), "nonsense", good(1)])
        done = harness.sluice("run", "--model", LLAMA, "-i", f"{d}/in", "-o", f"{d}/out",
                              "--errors", f"{d}/err", "--host-memory", "1GiB", "--strict",
                              check=False)
        assert done.returncode == 3, done.stderr
        assert [json.loads(x)["custom_id"] for x in open(f"{d}/out")] == ["good-0", "good-1"]
        assert [json.loads(x)["error"]["line"] for x in open(f"{d}/err")] == [2]


def test_a_file_of_bad_lines_only_still_ends():
    # Its exit code says that nothing succeeded.
    figures, results = harness.run(LLAMA, ["x", "", "{}"], check=False)
    assert figures["failed"] == 3 and len(results) == 3


if __name__ == "__main__":
    harness.run_tests(sys.modules[__name__])
