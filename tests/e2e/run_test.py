"""`sluice run`: the same tokens however the model is split, and what its
figures say."""

import json
import os
import sys
import tempfile

import harness

LLAMA = os.path.join(harness.MODELS, "llama-kjv")
OPT = os.path.join(harness.MODELS, "opt-kjv")


def check_equal(model):
    lines = harness.mixed_requests(40)
    base = None
    for workers in (1, 2, 3, 5):
        for refill in ((), ("--no-refill",)):
            figures, results = harness.run(
                model, lines, "--dtype", "float32", "--workers", str(workers),
                "--gbs", "4", "--max-step-tokens", "37", *refill)
            assert figures["completed"] == len(lines), figures
            got = harness.answers(results)
            assert [r["custom_id"] for r in results] == [f"r{i}" for i in range(len(lines))]
            base = base or got
            for name, answer in base.items():
                assert got[name] == answer, (
                    f"{name} differs with {workers} workers {refill}:\n{answer}\n{got[name]}")
    # Sampled requests must really differ from greedy ones.
    texts = {json.dumps(a[0]) for a in base.values()}
    assert len(texts) > len(lines) / 2


def test_llama_is_the_same_on_1_2_3_5_workers_with_and_without_refill():
    check_equal(LLAMA)


def test_opt_is_the_same_on_1_2_3_5_workers_with_and_without_refill():
    check_equal(OPT)


def test_scarce_kv_is_shared_by_need_or_reserved_with_the_same_tokens():
    lines = [json.dumps({
        "custom_id": f"r{i}", "method": "POST", "url": "/v1/completions",
        "body": {"prompt": "In the beginning God created", "max_tokens": 90 - i % 3 * 20,
                 "temperature": 1, "seed": i, "ignore_eos": i % 4 > 0}}) for i in range(60)]
    flags = ("--dtype", "float32", "--workers", "1", "--max-step-tokens", "128",
             "--max-model-len", "128")
    # The first run finds the memory that six sequences of the greatest length need; the others have
    # 64 slots in it.
    few, results = harness.run(LLAMA, lines, *flags, "--gbs", "6")
    base = harness.answers(results)
    for reserve in ((), ("--reserve-kv",)):
        figures, results = harness.run(
            LLAMA, lines, *flags, "--gbs", "64", *reserve,
            "--host-memory", str(few["peak_memory_bytes"]["host"] + (64 << 10)))
        assert figures["completed"] == len(lines), figures
        assert harness.answers(results) == base, reserve


def test_memory_for_kv_is_taken_as_it_is_needed():
    with tempfile.TemporaryDirectory() as model:
        with open(os.path.join(model, "config.json"), "w") as f:
            json.dump({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256,
                       "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 128,
                       "intermediate_size": 512, "vocab_size": 1000, "max_position_embeddings": 32768,
                       "rms_norm_eps": 1e-5, "eos_token_id": 2, "torch_dtype": "float32"}, f)
        lines = [json.dumps({
            "custom_id": f"r{i}", "method": "POST", "url": "/v1/completions",
            "body": {"prompt": [5 + i, 6, 7], "max_tokens": 4, "ignore_eos": True}}) for i in range(4)]
        figures, results = harness.run(
            model, lines, "--load-format", "dummy", "--host-memory", "3GiB")
        assert figures["completed"] == 4, results
        kv, peak = figures["kv_cache_bytes"], figures["peak_memory_bytes"]
        assert peak["host"] > 2 << 30, peak  # set aside
        assert kv["room"] > 2 << 30, kv
        assert 0 < kv["needed"] <= 32 << 20, kv
        # The resident memory is code, libraries and work space, and not what was set aside.
        assert 0 < peak["resident"] < 1 << 30 or harness.SLOW > 1, peak


def test_bfloat16_gives_the_same_whatever_the_batch():
    lines = harness.mixed_requests(24)
    _, alone = harness.run(LLAMA, lines, "--dtype", "bfloat16", "--gbs", "1")
    _, together = harness.run(LLAMA, lines, "--dtype", "bfloat16", "--workers", "2")
    assert harness.answers(alone) == harness.answers(together)


def test_two_micro_batches_in_a_block():
    lines = harness.mixed_requests(24)
    _, one = harness.run(LLAMA, lines, "--dtype", "float32")
    _, many = harness.run(LLAMA, lines, "--dtype", "float32", "--gbs", "3",
                          "--num-microbatches", "3", "--workers", "2")
    assert harness.answers(one) == harness.answers(many)


def test_json_line():
    figures, results = harness.run(LLAMA, harness.mixed_requests(6), "--max-tokens", "9")
    for key in ("requests", "completed", "failed", "prompt_tokens",
                "generation_tokens", "prefill_seconds", "decode_seconds",
                "wall_seconds", "prompt_tokens_per_second", "generation_tokens_per_second"):
        assert key in figures, key
    assert figures["requests"] == figures["completed"] == 6 and figures["failed"] == 0
    usages = [r["response"]["body"]["usage"] for r in results]
    assert figures["prompt_tokens"] == sum(u["prompt_tokens"] for u in usages)
    assert figures["generation_tokens"] == sum(u["completion_tokens"] for u in usages)
    assert 0 < figures["prefill_seconds"] + figures["decode_seconds"] <= figures["wall_seconds"] * 1.01


def test_text_input_and_job_defaults():
    lines = ["In the beginning", "The LORD is my"]
    figures, results = harness.run(LLAMA, lines, "--input-format", "text",
                                   "--max-tokens", "5", "--temperature", "0.8",
                                   "--seed", "3", "--ignore-eos")
    assert figures["completed"] == 2 and figures["generation_tokens"] == 10
    again = harness.run(LLAMA, lines, "--input-format", "text", "--max-tokens", "5",
                        "--temperature", "0.8", "--seed", "3", "--ignore-eos")[1]
    other = harness.run(LLAMA, lines, "--input-format", "text", "--max-tokens", "5",
                        "--temperature", "0.8", "--seed", "4", "--ignore-eos")[1]
    assert harness.answers(results) == harness.answers(again)
    assert harness.answers(results) != harness.answers(other)


def test_errors_are_clear():
    for flags, words in [
        (["--model", "/nonexistent", "-i", "x", "-o", "y"], ["x"]),
        (["--model", "/nonexistent", "-i", os.devnull, "-o", os.devnull], ["/nonexistent"]),
        (["--model", LLAMA, "-i", "/nonexistent/in", "-o", os.devnull], ["/nonexistent/in"]),
        (["--model", LLAMA, "-i", os.devnull, "-o", "/nonexistent/out"], ["/nonexistent/out"]),
        (["--model", LLAMA, "-i", os.devnull, "-o", os.devnull], ["no requests"]),
        (["--model", LLAMA, "-i", os.devnull, "-o", os.devnull, "--dtype", "int3"], ["int3"]),
        (["--model", LLAMA, "-i", os.devnull, "-o", os.devnull, "--workers", "0"], ["--workers"]),
        (["--model", LLAMA, "-i", os.devnull, "-o", os.devnull, "--host-memory", "1MiB"],
         ["of the 1.0 MiB"]),
        (["--model", LLAMA, "-i", os.devnull, "-o", os.devnull, "--host-memory", "much"], ["much"]),
    ]:
        done = harness.sluice("run", *flags, check=False)
        assert done.returncode in (1, 2), (flags, done.returncode, done.stderr)
        for word in words:
            assert word in done.stderr, (flags, done.stderr)


if __name__ == "__main__":
    harness.run_tests(sys.modules[__name__])
