"""What requests, their answers and their files owe to those who wrote them for other servers: entries of
log-probabilities, seeds, stops, ends, names of tokens, refusals, parameters that change nothing, chats made of texts."""

import json
import os
import shutil
import struct
import subprocess
import sys

import harness

LLAMA = os.path.join(harness.MODELS, "llama-kjv")
EOS, START, EOT = 2043, 2044, 2046  # <|end_of_text|>, <|start_header_id|>, <|eot_id|>
VOCAB = 2048


def copy_model(directory, **edits):
    """A copy of the model with other values in its JSON files: tokenizer_config={...}."""
    path = os.path.join(directory, "model")
    shutil.copytree(LLAMA, path)
    for name, values in edits.items():
        file = os.path.join(path, f"{name}.json")
        with open(file) as f:
            value = {**json.load(f), **values}
        with open(file, "w") as f:
            json.dump({k: v for k, v in value.items() if v is not None}, f)
    return path


def zero_tensor(model, name):
    with open(os.path.join(model, "model.safetensors.index.json")) as f:
        file = os.path.join(model, json.load(f)["weight_map"][name])
    with open(file, "r+b") as f:
        size, = struct.unpack("<Q", f.read(8))
        begin, end = json.loads(f.read(size))[name]["data_offsets"]
        f.seek(8 + size + begin)
        f.write(bytes(end - begin))


def run(model, bodies, *flags, **kwargs):
    _, results = harness.run(model, [json.dumps(body) for body in bodies], *flags, **kwargs)
    return results


def choice(result):
    assert result["error"] is None, result
    return result["response"]["body"]["choices"][0]


def text(result):
    c = choice(result)
    return c["message"]["content"] if "message" in c else c["text"]


def bias(token):
    return {"logit_bias": {str(token): 100}}


def test_each_token_that_usage_counts_has_its_log_probability(directory):
    hi = [{"role": "user", "content": "Hi"}]
    words = "In the beginning God created"
    bodies = []
    for more in ({"max_tokens": 1, **bias(EOS)}, {"max_tokens": 9, **bias(EOS)}, {"max_tokens": 4},
                 {"max_tokens": 3, "ignore_eos": True, **bias(EOS)}, {"max_tokens": 40, "stop": ["a", "e"]},
                 {"max_tokens": 9, "stop": ["<|start_header_id|>"], **bias(START)},
                 {"max_tokens": 9, "stop": ["zzz"], **bias(EOT)}):
        bodies += [{"prompt": words, "temperature": 0, "logprobs": 2, **more},
                   {"prompt": words, "temperature": 0, "logprobs": 2, "echo": True, **more},
                   {"messages": hi, "temperature": 0, "logprobs": True, "top_logprobs": 2, **more}]
    bodies.append({"prompt": words, "logprobs": 0, "echo": True, "max_tokens": 0})
    reasons = set()
    for body, result in zip(bodies, run(LLAMA, bodies)):
        usage, answer = result["response"]["body"]["usage"], choice(result)
        reasons.add(answer["finish_reason"])
        if "messages" in body:
            content = answer["logprobs"]["content"]
            assert len(content) == usage["completion_tokens"], (body, usage, content)
            assert all(len(entry["top_logprobs"]) == 2 for entry in content)
            last = content[-1]["token"]
        else:
            lists = answer["logprobs"]
            expected = usage["total_tokens"] if body.get("echo") else usage["completion_tokens"]
            assert {len(v) for v in lists.values()} == {expected}, (body, usage, lists)
            last = lists["tokens"][-1]
            if body["max_tokens"] > 0:
                assert last in lists["top_logprobs"][-1], lists
                assert lists["token_logprobs"][-1] == lists["top_logprobs"][-1][last]
        token = {str(EOS): "<|end_of_text|>", str(START): "<|start_header_id|>", str(EOT): "<|eot_id|>"}.get(
            next(iter(body.get("logit_bias", {})), None))
        if token:
            assert last == token and token not in text(result), (body, answer)
            if "prompt" in body:
                assert answer["logprobs"]["text_offset"][-1] == len(answer["text"]), answer
    assert reasons == {"stop", "length"}


def test_a_seed_of_all_lines_gives_each_prompt_its_own_noise(directory):
    model = copy_model(directory)
    zero_tensor(model, "model.norm.weight")  # all tokens are as likely
    count = 300

    def body(i, **more):
        return {"prompt": [100 + i, 500 + i, 900 + i], "max_tokens": 1, "temperature": 1.0, "logprobs": 0,
                "ignore_eos": True, **more}

    def first(results):
        return [choice(r)["logprobs"]["tokens"][0] for r in results]
    shared = first(run(model, [body(i, seed=42) for i in range(count)]))
    expected = VOCAB * (1 - (1 - 1 / VOCAB) ** count)
    assert len(set(shared)) > 0.9 * expected, (len(set(shared)), expected)
    # Reproducible in another order and split; other seeds differ; equal requests stay equal.
    again = first(run(model, [body(i, seed=42) for i in reversed(range(count))], "--workers", "2", "--gbs", "7"))
    assert again[::-1] == shared
    other = first(run(model, [body(i, seed=43) for i in range(count)]))
    assert sum(a == b for a, b in zip(shared, other)) < count / 10
    assert len(set(first(run(model, [body(7, seed=42)] * 20)))) == 1
    # A negative seed is none.
    none = first(run(model, [body(7) for _ in range(20)]))
    assert first(run(model, [body(7, seed=-1) for _ in range(20)])) == none and len(set(none)) > 15


def test_special_tokens_stop(directory):
    words = {"prompt": "In the beginning", "max_tokens": 6, "temperature": 0, **bias(START)}
    results = run(LLAMA, [{**words, "stop": "<|start_header_id|>"}, {**words, "stop_token_ids": [START]},
                          {**words, "stop": ["x<|start_header_id|>"]}, words])
    for result in results[:2]:
        assert choice(result)["finish_reason"] == "stop" and text(result) == "", result
        assert result["response"]["body"]["usage"]["completion_tokens"] == 1
    assert "special token" in results[2]["error"]["message"], results[2]
    assert choice(results[3])["finish_reason"] == "length"


def test_the_tokenizers_eos_token_ends(directory):
    body = {"prompt": "In the beginning", "max_tokens": 6, "temperature": 0, **bias(START)}
    for eos, reason, words in (
            ("<|start_header_id|>", "stop", 'only the tokenizer\'s eos_token names "<|start_header_id|>" (2044)'),
            ("<nothing>", "length", 'the tokenizer\'s eos_token "<nothing>" is no token of the model')):
        model = copy_model(os.path.join(directory, reason), tokenizer_config={"eos_token": eos})
        source, target = os.path.join(directory, "in.jsonl"), os.path.join(directory, "out.jsonl")
        harness.write_lines(source, [json.dumps(body)])
        done = harness.sluice("run", "--model", model, "-i", source, "-o", target)
        with open(target) as f:
            result = json.loads(f.read())
        assert choice(result)["finish_reason"] == reason, result
        assert words in done.stderr, done.stderr
        assert done.stderr.count("answers end at") == 1, done.stderr


def test_byte_tokens_do_not_melt(directory):
    with open(os.path.join(LLAMA, "tokenizer.json")) as f:
        vocab = json.load(f)["model"]["vocab"]
    # One character of GPT-2's alphabet above U+00A0 is one byte of the same number, which is no UTF-8 alone.
    tokens = [vocab[chr(c)] for c in range(0xC3, 0xD0)]
    body = {"max_tokens": 1, "temperature": 0, "logit_bias": {str(t): 50 for t in tokens}}
    results = run(LLAMA, [{"prompt": "x", "logprobs": 20, **body}])
    lists = choice(results[0])["logprobs"]
    assert lists["tokens"][0].startswith("bytes:\\x"), lists
    assert len(lists["top_logprobs"][0]) >= 20, lists


def test_what_asks_for_nothing_passes_and_top_p_0_is_greedy(directory):
    words = {"prompt": "In the beginning God", "max_tokens": 8}
    greedy = {**words, "temperature": 0}
    sampled = {**words, "temperature": 1, "seed": 3}
    neutral = {"min_tokens": 0, "skip_special_tokens": True, "use_beam_search": False, "length_penalty": 1.0,
               "guided_decoding": None, "best_of": 1, "stop_token_ids": []}
    results = run(LLAMA, [greedy, {**greedy, **neutral}, {**sampled, "top_p": 0}, {**sampled, "top_p": 1e-9},
                          {**greedy, "min_tokens": 2}])
    assert len({text(r) for r in results[:4]}) == 1, results
    assert "not supported" in results[4]["error"]["message"]
    line = {"custom_id": "a", "method": "POST", "body": greedy}
    lines = [{**line, "custom_id": url, "url": url} for url in ("/v1/completions", "/completions/")]
    assert len({text(r) for r in run(LLAMA, lines)}) == 1
    _, job = harness.run(LLAMA, [json.dumps({"prompt": "In the beginning God"})], "--top-p", "0", "--temperature", "1",
                         "--max-tokens", "8")
    assert text(job[0]) == text(results[0])


def test_lines_are_lines_for_all_readers(directory):
    ends = "x\u2028y\u0085z\u2029"
    source, target = os.path.join(directory, "in.jsonl"), os.path.join(directory, "out.jsonl")
    harness.write_lines(source, [json.dumps({"custom_id": ends, "prompt": ends, "max_tokens": 1, "echo": True}),
                                 json.dumps({"custom_id": "b" + ends, "prompt": ends, "n": ends})])
    harness.sluice("run", "--model", LLAMA, "-i", source, "-o", target)
    with open(target, encoding="utf-8", newline="") as f:
        lines = f.read().splitlines()
    assert len(lines) == 2, lines
    assert [json.loads(line)["custom_id"] for line in lines] == [ends, "b" + ends]


def test_texts_become_chats(directory):
    question, system = "What is the sum of the law?", "Answer shortly."
    user = {"role": "user", "content": question}
    common = {"max_tokens": 8, "temperature": 0}
    texts, lines, target = (os.path.join(directory, n) for n in ("in.txt", "in.jsonl", "out.jsonl"))
    harness.write_lines(texts, [question])
    harness.write_lines(lines, [json.dumps({"prompt": question, **common})])

    def answer(source, *flags, check=True):
        done = harness.sluice("run", "--model", LLAMA, "-i", source, "-o", target, "--max-tokens", "8", "--temperature",
                              "0", *flags, check=check)
        if not check:
            return done
        with open(target) as f:
            return json.loads(f.read()), done.stderr
    chat, told = run(LLAMA, [{"messages": [user], **common},
                             {"messages": [{"role": "system", "content": system}, user], **common}])
    for source in (texts, lines):
        raw, said = answer(source)
        assert raw["response"]["body"]["object"] == "text_completion"
        assert "no request uses it" in said and "--chat" in said, said
        for flags, expected in ((["--chat"], chat), (["--system", system], told)):
            got, said = answer(source, *flags)
            assert got["response"]["body"]["object"] == "chat.completion"
            assert (text(got), got["response"]["body"]["usage"]) == (
                text(expected), expected["response"]["body"]["usage"]), (got, expected)
            assert "no request uses it" not in said, said
    done = harness.sluice("run", "--model", os.path.join(harness.MODELS, "opt-kjv"), "-i", texts, "-o", target, "--chat",
                          check=False)
    assert done.returncode != 0 and "no chat template" in done.stderr, done.stderr


def test_an_output_that_cannot_be_replaced_is_written(directory):
    if os.geteuid() != 0 or subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode != 0:
        raise harness.Skipped("needs a mount namespace of its own")
    source = os.path.join(directory, "in.jsonl")
    harness.write_lines(source, [json.dumps({"prompt": f"{i}", "max_tokens": 2}) for i in range(20)] + ["bad"])
    for name in ("host", "box"):
        os.mkdir(os.path.join(directory, name))
        for file in ("out", "errors"):
            with open(os.path.join(directory, name, file), "w") as f:
                f.write("old\n" * 99)
    sluice = os.path.join(harness.BIN, "sluice")
    box, host = os.path.join(directory, "box"), os.path.join(directory, "host")
    for read_only in (False, True):
        script = (f"mount --bind {box} {box} && for f in out errors; do mount --bind {host}/$f {box}/$f; done && "
                  + (f"mount -o remount,ro,bind {box} && " if read_only else "")
                  + f"{sluice} run --model {LLAMA} -i {source} -o {box}/out --errors {box}/errors -q")
        done = subprocess.run(["unshare", "-m", "bash", "-c", script], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        for file, count in (("out", 20), ("errors", 1)):
            with open(os.path.join(host, file)) as f:
                assert len([json.loads(line) for line in f]) == count
        assert sorted(os.listdir(box)) == ["errors", "out"]


def test_an_output_that_promises_to_be_packed_is_refused(directory):
    source = os.path.join(directory, "in.jsonl")
    harness.write_lines(source, [json.dumps({"prompt": "x"})])
    for command in (["run", "--model", LLAMA, "-i", source, "-o", "answers.jsonl.bz2"],
                    ["run", "--model", LLAMA, "-i", source, "-o", "-", "--errors", "e.jsonl.xz"],
                    ["run", "--model", LLAMA, "-i", source, "-o", "-", "--trace", "trace.json.gz"]):
        done = harness.sluice(*command, check=False)
        assert done.returncode == 2 and "pack the file" in done.stderr, (done.returncode, done.stderr)


harness.give_directories(globals())

if __name__ == "__main__":
    harness.run_tests(sys.modules[__name__])
