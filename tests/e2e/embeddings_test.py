"""Embeddings as jobs, and lines of several requests: the vectors are those of sentence-transformers, and their bits do
not depend on where, beside what, in which chunks and how often they are computed."""

import base64
import json
import math
import os
import shutil
import signal
import sqlite3
import struct
import subprocess
import sys

import harness

LLAMA = os.path.join(harness.MODELS, "llama-kjv")
HIDDEN = 160
FP32 = ("--dtype", "float32")
MAX_ERROR = 1e-4  # of an element, of vectors whose elements are about 1
WORDS = [*harness.PROMPTS, "And he said unto them, Go ye into all the world. " * 9]


def model_with(directory, modules=(), tokenizer=None, **configs):
    """A copy of the model with modules, which are (type, path), and their config.json."""
    path = os.path.join(directory, "model")
    shutil.copytree(LLAMA, path)
    if modules:
        with open(os.path.join(path, "modules.json"), "w") as f:
            json.dump([{"idx": i, "name": str(i), "path": place, "type": f"sentence_transformers.models.{kind}"}
                       for i, (kind, place) in enumerate(modules)], f)
    for place, config in configs.items():
        os.mkdir(os.path.join(path, place))
        with open(os.path.join(path, place, "config.json"), "w") as f:
            json.dump(config, f)
    return path


def pooling_model(directory, mode, normalize):
    modules = [("Transformer", ""), ("Pooling", "1_Pooling")] + [("Normalize", "2_Normalize")] * normalize
    key = f"pooling_mode_{mode}" if mode.endswith("tokens") or mode == "lasttoken" else f"pooling_mode_{mode}_tokens"
    if mode == "cls":
        key = "pooling_mode_cls_token"
    return model_with(directory, modules, **{"1_Pooling": {"word_embedding_dimension": HIDDEN, key: True}})


def line(name, texts, **more):
    return json.dumps({"custom_id": name, "method": "POST", "url": "/v1/embeddings", "body": {"input": texts, **more}})


def completion(name, prompt, **more):
    return json.dumps({"custom_id": name, "method": "POST", "url": "/v1/completions",
                       "body": {"prompt": prompt, **more}})


def body(result):
    assert result["error"] is None, result
    return result["response"]["body"]


def vectors(result):
    data = body(result)["data"]
    assert [entry["index"] for entry in data] == list(range(len(data))), data
    assert all(entry["object"] == "embedding" for entry in data)
    return [entry["embedding"] for entry in data]


def normalized(vector):
    length = math.sqrt(sum(x * x for x in vector))
    return [x / length for x in vector]


def check_close(got, want, scale=1.0):
    assert len(got) == len(want), (len(got), len(want))
    error = max(abs(a - b) for a, b in zip(got, want))
    assert error <= MAX_ERROR * scale, error


def test_vectors_are_those_of_sentence_transformers(directory):
    with open(os.path.join(harness.TESTS, "golden", "embeddings", "llama-kjv.json")) as f:
        golden = json.load(f)
    assert len(golden["vectors"]) == 6
    for i, (mode, expected) in enumerate(golden["vectors"].items()):
        normalize = i % 2 == 0
        model = pooling_model(os.path.join(directory, mode), mode, normalize)
        _, results = harness.run(model, [line("all", golden["texts"])], *FP32)
        for got, want in zip(vectors(results[0]), expected, strict=True):
            if normalize:
                check_close(got, normalized(want))
            else:
                check_close(got, want, max(abs(x) for x in want))
    # Without files, the last token's, normalized.
    _, results = harness.run(LLAMA, [line("all", golden["texts"])], *FP32)
    for got, want in zip(vectors(results[0]), golden["vectors"]["lasttoken"], strict=True):
        check_close(got, normalized(want))


def test_forms_of_inputs_and_answers(directory):
    ids = [5, 6, 7]
    _, results = harness.run(LLAMA, [
        line("float", "Behold"), line("base64", "Behold", encoding_format="base64"),
        line("short", "Behold", dimensions=8), line("ids", ids), line("lists", [ids, [9], ids]),
        line("one", ["Behold"])], *FP32)
    whole, = vectors(results[0])
    packed, = vectors(results[1])
    assert len(whole) == HIDDEN
    single = list(struct.unpack(f"<{HIDDEN}f", base64.b64decode(packed)))
    assert [struct.unpack("<f", struct.pack("<f", x))[0] for x in whole] == single
    short, = vectors(results[2])
    check_close(short, normalized(whole[:8]))
    assert vectors(results[3])[0] == vectors(results[4])[0] == vectors(results[4])[2] != vectors(results[4])[1]
    assert body(results[3])["usage"] == {"prompt_tokens": 3, "total_tokens": 3}
    assert body(results[4])["usage"] == {"prompt_tokens": 7, "total_tokens": 7}
    assert vectors(results[5]) == [whole]
    assert body(results[0])["model"] == "llama-kjv" and body(results[0])["object"] == "list"


def with_bare_names(model):
    """Renames tensors as AutoModel saves them; the headers keep their length."""
    for name in os.listdir(model):
        if not name.endswith(".safetensors"):
            continue
        path = os.path.join(model, name)
        with open(path, "r+b") as f:
            size, = struct.unpack("<Q", f.read(8))
            header = json.loads(f.read(size))
            bare = {key.removeprefix("model."): entry for key, entry in header.items()}
            f.seek(8)
            f.write(json.dumps(bare, separators=(",", ":")).encode().ljust(size))
    path = os.path.join(model, "model.safetensors.index.json")
    with open(path) as f:
        index = json.load(f)
    index["weight_map"] = {key.removeprefix("model."): shard for key, shard in index["weight_map"].items()}
    with open(path, "w") as f:
        json.dump(index, f)


def test_a_model_without_its_head_gives_embeddings_only(directory):
    """As AutoModel saves models whose head is no tied one."""
    model = model_with(directory)
    path = os.path.join(model, "config.json")
    with open(path) as f:
        config = json.load(f)
    config["tie_word_embeddings"] = False
    with open(path, "w") as f:
        json.dump(config, f)
    with_bare_names(model)
    lines = [line("a", "Behold"), completion("b", "Behold", max_tokens=1)]
    _, expected = harness.run(LLAMA, [lines[0]], *FP32)
    for flags in ((), ("--workers", "2"), ("--disk-dir", directory, "--policy", "w=0/50/50")):
        _, results = harness.run(model, lines, *FP32, *flags)
        assert vectors(results[0]) == vectors(expected[0]), flags
        error = results[1]["error"]
        assert error["code"] == "unsupported" and "no tensor lm_head.weight" in error["message"], error
    # Workers that fetch their layers get the embedding as the head.
    with harness.Cluster(model, workers=2, started=False, coordinator_flags=FP32) as cluster:
        cluster.start_coordinator()
        cluster.model = None
        for name in ("first", "last"):
            cluster.start_worker(name, "--cache-dir", os.path.join(cluster.directory, name))
        path = os.path.join(cluster.directory, "in.jsonl")
        harness.write_lines(path, lines)
        job = cluster.submit(path)["id"]
        assert cluster.wait_for_end(job)["status"] == "completed"
        assert vectors(cluster.results(job)[0]) == vectors(expected[0])
    shown = json.loads(harness.sluice("models", model, "--json").stdout.splitlines()[0])
    assert "lm_head.weight is not in the model's files, so that it makes embeddings only" in json.dumps(shown), shown
    # One that an index names is missing.
    path = os.path.join(model, "model.safetensors.index.json")
    with open(path) as f:
        index = json.load(f)
    index["weight_map"]["lm_head.weight"] = "model-00003-of-00003.safetensors"
    with open(path, "w") as f:
        json.dump(index, f)
    source = os.path.join(directory, "in.jsonl")
    harness.write_lines(source, lines)
    done = harness.sluice("run", "--model", model, "-i", source, "-o", source + ".out", check=False)
    assert done.returncode != 0 and "no tensor lm_head.weight" in done.stderr, done.stderr


def test_a_text_is_cut_where_the_line_says_so(directory):
    ids = [5 + i % 90 for i in range(700)]
    _, results = harness.run(LLAMA, [
        line("last", ids, truncate_prompt_tokens=40), line("whole", ids[-40:]),
        line("fits", ids, truncate_prompt_tokens=-1), line("512", ids[-512:]),
        completion("cut", ids, truncate_prompt_tokens=-1, max_tokens=12, temperature=0),
        completion("own", ids[-500:], max_tokens=12, temperature=0), line("long", ids)], *FP32)
    assert vectors(results[0]) == vectors(results[1])
    assert vectors(results[2]) == vectors(results[3])
    assert body(results[4])["choices"] == body(results[5])["choices"]
    assert body(results[4])["usage"]["prompt_tokens"] == 500
    assert results[6]["error"]["code"] == "prompt_too_long", results[6]


def test_the_tokenizers_end_token_is_pooled(directory):
    """As Qwen3-Embedding's, whose template puts a token behind each text."""
    model = model_with(directory)
    path = os.path.join(model, "tokenizer.json")
    with open(path) as f:
        tokenizer = json.load(f)
    template = tokenizer["post_processor"]["processors"][1]
    template["single"].append({"SpecialToken": {"id": "<|end_of_text|>", "type_id": 0}})
    template["special_tokens"]["<|end_of_text|>"] = {
        "id": "<|end_of_text|>", "ids": [2043], "tokens": ["<|end_of_text|>"]}
    with open(path, "w") as f:
        json.dump(tokenizer, f)
    _, plain = harness.run(LLAMA, [line("a", "Behold"), completion("b", "Behold", max_tokens=1)], *FP32)
    _, ended = harness.run(model, [line("a", "Behold")], *FP32)
    assert body(ended[0])["usage"]["prompt_tokens"] == body(plain[0])["usage"]["prompt_tokens"] + 1
    assert body(plain[0])["usage"]["prompt_tokens"] == body(plain[1])["usage"]["prompt_tokens"]
    assert vectors(ended[0]) != vectors(plain[0])


def mixed_lines(count):
    """Embeddings of one and several texts among completions."""
    lines = []
    for i in range(count):
        words = WORDS[i % len(WORDS)]
        if i % 3 == 0:
            lines.append(line(f"r{i}", words))
        elif i % 3 == 1:
            lines.append(line(f"r{i}", [words, f"{i} {words}", "O"]))
        else:
            lines.append(completion(f"r{i}", [words, f"{i}"], max_tokens=12, temperature=0.8, seed=i,
                                    **({"logprobs": 1, "echo": True} if i % 2 else {})))
    return lines


def test_bits_are_the_same_wherever_they_are_computed(directory):
    lines = mixed_lines(30)
    for mode in ("lasttoken", "mean"):
        model = pooling_model(os.path.join(directory, mode), mode, True)
        _, expected = harness.run(model, lines, *FP32)
        for flags in (("--workers", "2", "--max-step-tokens", "37", "--gbs", "4"),
                      ("--workers", "3", "--max-step-tokens", "16", "--gbs", "7"),
                      ("--tensor-parallel", "2", "--max-step-tokens", "64"),
                      ("--device", "cpu-discrete", "--device-memory", "64MiB", "--max-step-tokens", "50"),
                      ("--disk-dir", os.path.join(directory, mode), "--policy", "w=0/50/50,c=0/50/50",
                       "--max-step-tokens", "48", "--gbs", "4")):
            figures, results = harness.run(model, lines, *FP32, *flags)
            assert figures["completed"] == len(lines), figures
            assert harness.answers(results) == harness.answers(expected), (mode, flags)


def test_each_prompt_of_a_line_is_answered_as_alone(directory):
    prompts = [*harness.PROMPTS[:5], [5, 6, 7]]
    shared = {"max_tokens": 9, "temperature": 0.9, "seed": 11, "logprobs": 2, "echo": True}
    _, results = harness.run(LLAMA, [completion("all", prompts, **shared)] + [
        completion(f"r{i}", prompt, **shared) for i, prompt in enumerate(prompts)], *FP32)
    whole, alone = body(results[0]), [body(result) for result in results[1:]]
    assert [choice.pop("index") for choice in whole["choices"]] == list(range(len(prompts)))
    for choice, other in zip(whole["choices"], alone, strict=True):
        expected = dict(other["choices"][0])
        expected.pop("index")
        assert choice == expected
    for key in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert whole["usage"][key] == sum(other["usage"][key] for other in alone)


def test_what_can_not_be_made_is_an_error_of_its_line(directory):
    _, results = harness.run(LLAMA, [
        line("a", "x " * 2000), line("b", ["x", "x " * 2000]), line("c", "x", dimensions=HIDDEN + 1),
        line("d", []), line("e", "fine"), line("f", ["x"] * 2049)], *FP32, check=False)
    for result, part in zip(results, (
            'line 1: too long a text: "input" has ', 'line 2: too long a text: "input[1]" has ',
            '"dimensions" is 161, but the model\'s embeddings have 160', '"input" is empty', None,
            '"input" is a list of 2049; a line takes at most 2048')):
        assert (part in result["error"]["message"]) if part else result["error"] is None, result
    dense = model_with(directory, [("Transformer", ""), ("Pooling", "1_Pooling"), ("Dense", "2_Dense")],
                       **{"1_Pooling": {"pooling_mode": "mean"}})
    _, results = harness.run(dense, [line("a", "x"), completion("b", "x", max_tokens=1)], *FP32)
    assert 'the module "2_Dense" (Dense) is nothing that Sluice has' in results[0]["error"]["message"], results[0]
    assert results[0]["error"]["code"] == "unsupported" and results[1]["error"] is None


def test_a_workers_death_changes_nothing(directory):
    lines = mixed_lines(60 if harness.SANITIZED else 500)
    model = pooling_model(directory, "mean", True)
    _, expected = harness.run(model, lines, *FP32)
    with harness.Cluster(model, workers=2, coordinator_flags=[
            *FP32, "--max-step-tokens", "32", "--gbs", "4"]) as cluster:
        path = os.path.join(cluster.directory, "in.jsonl")
        harness.write_lines(path, lines)
        job = cluster.submit(path)["id"]
        harness.wait_for(lambda: cluster.status(job)["request_counts"]["completed"] > 5, "some results")
        cluster.workers["worker-1"].kill9()
        del cluster.workers["worker-1"]
        assert cluster.status(job)["status"] != "completed", "the job was too short"
        cluster.start_worker("worker-2")
        state = cluster.wait_for_end(job)
        assert state["status"] == "completed" and state["request_counts"]["completed"] == len(lines), state
        assert state["replays"] > 0, state
        assert harness.answers(cluster.results(job)) == harness.answers(expected)


def test_a_stopped_run_goes_on(directory):
    lines = mixed_lines(60 if harness.SANITIZED else 600)
    _, expected = harness.run(LLAMA, lines, *FP32)
    source, target = os.path.join(directory, "in.jsonl"), os.path.join(directory, "out.jsonl")
    harness.write_lines(source, lines)
    command = [os.path.join(harness.BIN, "sluice"), "run", "--model", LLAMA, "-i", source, "-o", target,
               "--host-memory", "1GiB", *FP32, "--max-step-tokens", "32", "--gbs", "4"]
    stopped = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)

    def stored():
        try:
            with sqlite3.connect(f"file:{target}.sluice/sluice.db?mode=ro", uri=True) as db:
                return db.execute("SELECT count(*) FROM results").fetchone()[0] > 20
        except sqlite3.Error:
            return False  # it is being made
    harness.wait_for(stored, "some results")
    stopped.send_signal(signal.SIGINT)
    stopped.communicate(timeout=60 * harness.SLOW)
    assert not os.path.exists(target), "the run was too short"
    subprocess.run(command, check=True, capture_output=True, timeout=600 * harness.SLOW)
    with open(target) as f:
        assert harness.answers(map(json.loads, f)) == harness.answers(expected)


harness.give_directories(globals())

if __name__ == "__main__":
    harness.run_tests(sys.modules[__name__])
