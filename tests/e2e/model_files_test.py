"""Tests what the files of a model directory say, as a user meets it: tokenizers that drop a text's
first space, rope scaling, chat templates, generation_config.json."""

import json
import os
import shutil
import sys
import tempfile

import harness

GOLDEN = os.path.join(harness.TESTS, "golden")
LLAMA = os.path.join(harness.MODELS, "llama-kjv")
CONFIG = {"model_type": "llama", "hidden_size": 16, "intermediate_size": 16,
          "num_hidden_layers": 2, "num_attention_heads": 2,
          "max_position_embeddings": 128, "vocab_size": 2048, "torch_dtype": "float32"}


def model(directory, *, tokenizer="", generation=None, template=None, **config):
    """A directory that needs no weights; its path."""
    path = tempfile.mkdtemp(dir=directory)
    if tokenizer:
        source = os.path.join(GOLDEN, "tokenizers", tokenizer)
        for file in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(os.path.join(source, file), path)
    files = {"config.json": json.dumps({**CONFIG, **config}),
             "generation_config.json": generation and json.dumps(generation),
             "chat_template.jinja": template}
    for name, text in files.items():
        if text is not None:
            with open(os.path.join(path, name), "w") as f:
                f.write(text)
    return path


def run(path, bodies, *flags, **kwargs):
    _, results = harness.run(path, [json.dumps(body) for body in bodies],
                             "--load-format", "dummy", *flags, **kwargs)
    return results


def choice(result):
    assert result["error"] is None, result
    return result["response"]["body"]["choices"][0]


def test_the_space_behind_a_prompt_is_kept(directory):
    for tokenizer in ("llama2", "mistral-metaspace"):
        path = model(directory, tokenizer=tokenizer)
        bodies = []
        for i, prompt in enumerate(harness.PROMPTS):
            common = {"prompt": prompt, "max_tokens": 12, "ignore_eos": True,
                      "temperature": 1.0, "seed": i}
            bodies += [{**common, "echo": True, "logprobs": 0}, common,
                       {**common, "stop": ["\u2603"]}]
        results = run(path, bodies)
        spaces = compared = 0
        for i, prompt in enumerate(harness.PROMPTS):
            echo, alone, watched = [choice(r) for r in results[3 * i:3 * i + 3]]
            assert echo["text"] == prompt + alone["text"], (echo, alone)
            assert watched["text"] == alone["text"], (watched, alone)
            spaces += alone["text"].startswith(" ")
            logprobs = echo["logprobs"]
            # The first token of the prompt is special, the second may have lost its space. A
            # byte is replaced when others in its run are no text.
            whole = (echo["text"] + "\ufffd").index("\ufffd")
            for token, offset in list(zip(logprobs["tokens"], logprobs["text_offset"]))[2:]:
                special = token in ("<s>", "</s>", "<unk>") or token.startswith("bytes:")
                if special or offset + len(token) > whole:
                    continue
                assert echo["text"][offset:offset + len(token)] == token, (token, offset, echo)
                compared += offset >= len(prompt)
        assert spaces > 0 and compared > 20, (tokenizer, spaces, compared)


def test_scaling_stretches_positions(directory):
    prompt = {"prompt": [7 + i % 50 for i in range(200)], "max_tokens": 2, "temperature": 0,
              "ignore_eos": True}
    yarn = model(directory, rope_scaling={"type": "yarn", "factor": 4.0,
                                          "original_max_position_embeddings": 128})
    assert choice(run(yarn, [prompt])[0])["finish_reason"] == "length"
    too_long = run(yarn, [prompt], "--max-model-len", "150", check=False)[0]["error"]
    assert too_long["code"] == "prompt_too_long", too_long
    assert "up to 512 is possible" in too_long["message"], too_long
    # Whether the 128 positions are those before or after scaling, it does not say.
    linear = model(directory, rope_scaling={"type": "linear", "factor": 4.0})
    too_long = run(linear, [prompt], check=False)[0]["error"]
    assert too_long["code"] == "prompt_too_long", too_long
    assert "--max-model-len; up to 512 is possible" in too_long["message"], too_long
    assert choice(run(linear, [prompt], "--max-model-len", "512")[0])["finish_reason"] == "length"
    dynamic = model(directory, rope_scaling={"type": "dynamic", "factor": 4.0})
    error = run(dynamic, [prompt], check=False)[0]["error"]
    assert error["code"] == "prompt_too_long" and "yarn" in error["message"], error
    source = os.path.join(directory, "in.txt")
    with open(source, "w") as f:
        f.write("x\n")
    done = harness.sluice("run", "--model", dynamic, "--load-format", "dummy", "-i", source,
                          "-o", os.devnull, "--max-model-len", "200", check=False)
    assert done.returncode != 0 and "takes 128 positions" in done.stderr, done.stderr


def test_a_broken_chat_template_stops_only_chats(directory):
    path = model(directory, template="{% if %}")
    done = run(path, [{"prompt": "x", "max_tokens": 1},
                      {"messages": [{"role": "user", "content": "x"}]}])
    assert done[0]["error"] is None, done[0]
    assert done[1]["error"]["code"] == "unsupported", done[1]
    assert "chat_template.jinja" in done[1]["error"]["message"], done[1]
    text = os.path.join(path, "text.txt")
    with open(text, "w") as f:
        f.write("some text")
    scored = harness.sluice("score", "--model", path, "--load-format", "dummy", "--input", text)
    assert "perplexity" in scored.stdout
    assert "chat_template.jinja" in scored.stderr, scored.stderr


def test_generation_configs_are_followed_or_refused(directory):
    path = model(directory, generation={"no_repeat_ngram_size": 3, "max_length": 20})
    source = os.path.join(path, "in.txt")
    with open(source, "w") as f:
        f.write("x\n")
    flags = ["--model", path, "--load-format", "dummy", "-i", source]
    refused = harness.sluice("run", *flags, "-o", os.devnull, check=False)
    assert refused.returncode != 0
    for word in ("generation_config.json", "no_repeat_ngram_size 3", "--generation-config none"):
        assert word in refused.stderr, refused.stderr
    harness.sluice("run", *flags, "-o", os.devnull, "--generation-config", "none")
    with open(source, "w") as f:
        f.write("some text")
    harness.sluice("score", *flags)

    short = model(directory, generation={"max_length": 20})
    bodies = [{"prompt": [5] * 15, "ignore_eos": True},
              {"prompt": [5] * 15, "ignore_eos": True, "max_tokens": 9},
              {"prompt": [5] * 30, "ignore_eos": True}]
    tokens = [r["response"]["body"]["usage"]["completion_tokens"] for r in run(short, bodies)]
    assert tokens == [5, 9, 1], tokens


def test_a_text_of_one_token_is_left_out_of_a_score(directory):
    files = []
    for text in ("In the beginning God created.", "a"):
        files.append(os.path.join(directory, f"{len(files)}.txt"))
        with open(files[-1], "w") as f:
            f.write(text)
    flags = ["--model", LLAMA, "--bos", "none", "--json"]
    alone = json.loads(harness.sluice("score", *flags, "--input", files[0]).stdout)
    both = harness.sluice("score", *flags, "--input", *files)
    assert "1.txt is too short" in both.stderr, both.stderr
    assert json.loads(both.stdout)["nll_nats"] == alone["nll_nats"]


harness.give_directories(globals())

if __name__ == "__main__":
    harness.run_tests(sys.modules[__name__])
