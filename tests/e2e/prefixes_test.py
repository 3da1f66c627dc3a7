"""Prompts that begin alike: their beginning is computed once, and every answer is, bit for bit, what it is
without sharing, whatever the split, the placement and the faults."""

import json
import os
import random
import sys
import tempfile

import harness

LLAMA = os.path.join(harness.MODELS, "llama-kjv")
PAGE = 32
FP32 = ("--dtype", "float32")


def tree_requests(count, seed=1):
    """Prompts from a random tree of three levels, whose branches end on borders of pages and between them, and
    then tokens of their own; sampled, penalized, scored and echoed ones among them."""
    dice = random.Random(seed)
    branches = {}
    lines = []
    for i in range(count):
        prompt, path = [], ()
        for _ in range(3):
            path += (dice.randrange(2),)
            if path not in branches:
                length = dice.choice((PAGE, 2 * PAGE, PAGE - 1, PAGE + 1, 7, 50))
                branches[path] = [dice.randrange(5, 250) for _ in range(length)]
            prompt += branches[path]
        own = dice.choice((0, 0, 1, 5, 31, 40))
        prompt = prompt + [dice.randrange(5, 250) for _ in range(own)]
        body = {"prompt": prompt, "max_tokens": dice.choice((1, 4, 20)), "logprobs": 1}
        if i % 2:
            body.update(temperature=0.8, seed=i, top_p=0.9)
        else:
            body.update(temperature=0)
        if i % 5 == 3:
            body.update(repetition_penalty=1.3, presence_penalty=0.5)
        if i % 7 == 5:
            body.update(echo=True)
        if i % 11 == 7:
            body.update(truncate_prompt_tokens=len(prompt) - 3)
        lines.append(json.dumps({"custom_id": f"r{i}", "method": "POST", "url": "/v1/completions", "body": body}))
    return lines


def unshared(lines, *flags):
    figures, results = harness.run(LLAMA, lines, *FP32, "--share-prefixes", "off", *flags)
    assert figures["cached_tokens"] == 0, figures
    return harness.answers(results)


SMALL = ("--gbs", "6", "--max-step-tokens", "48")


def check(lines, expected, *flags, shared=True):
    figures, results = harness.run(LLAMA, lines, *FP32, *flags)
    assert harness.answers(results) == expected, flags
    cached = figures["cached_tokens"]
    assert cached > figures["prompt_tokens"] // 4 if shared else cached == 0, (flags, figures)


def test_answers_are_those_without_sharing():
    lines = tree_requests(80)
    expected = unshared(lines)
    for flags in (SMALL,
                  (*SMALL, "--workers", "2", "--num-microbatches", "2"),
                  ("--gbs", "3", "--max-step-tokens", "16", "--workers", "3"),  # slices
                  (*SMALL, "--tensor-parallel", "2", "--workers", "2"),
                  (*SMALL, "--reserve-kv")):
        check(lines, expected, *flags)
    check(lines, expected, *SMALL, "--no-refill", shared=False)


def test_usage_tells_what_was_shared_if_asked():
    lines = tree_requests(30)
    figures, results = harness.run(LLAMA, lines, *FP32, *SMALL, "--enable-prompt-tokens-details")
    usages = [result["response"]["body"]["usage"] for result in results]
    cached = [usage.pop("prompt_tokens_details")["cached_tokens"] for usage in usages]
    assert sum(cached) == figures["cached_tokens"] > 0, cached
    assert all(c % PAGE == 0 and c < u["prompt_tokens"] for c, u in zip(cached, usages)), cached
    # Without it, answers are those of any run.
    assert harness.answers(results) == unshared(lines)


def test_any_tier_is_shared():
    lines = tree_requests(50, seed=2)
    expected = unshared(lines)
    with tempfile.TemporaryDirectory(prefix="sluice-e2e-") as directory:
        on_disk = (*SMALL, "--disk-dir", directory, "--policy")
        device = (*on_disk[:-1], "--device", "cpu-discrete", "--device-memory", "64MiB", "--policy")
        for flags in ((*on_disk, "w=0/0/100"),
                      (*on_disk, "c=0/0/100"),
                      (*on_disk, "c=0/0/100", "--workers", "6"),  # a layer each
                      (*device, "c=100/0/0"),
                      (*device, "c=0/100/0"),
                      (*device, "c=0/100/0 attention-site=device"),
                      (*device, "c=0/0/100 attention-site=device", "--workers", "6")):
            check(lines, expected, *flags)
        # A sequence lies in one tier, and it could not be that of its prefix.
        check(lines, expected, *on_disk, "c=0/50/50", shared=False)


def test_quantized_kv_is_shared():
    lines = tree_requests(50, seed=3)
    for kv in ("int8", "int4"):
        flags = (*SMALL, "--policy", f"compress-kv={kv}")
        check(lines, unshared(lines, *flags), *flags, "--workers", "2")


def test_little_room():
    """The KV cache holds a few sequences only: prefixes come and go."""
    lines = tree_requests(80, seed=4)
    check(lines, unshared(lines), *SMALL, "--max-model-len", "400", "--host-memory", "14MiB")


def kill_one_after_the_other(count):
    lines = tree_requests(count, seed=5)
    expected = unshared(lines)
    flags = (*FP32, "--gbs", "4", "--max-step-tokens", "32")
    with harness.Cluster(LLAMA, workers=3, coordinator_flags=flags) as cluster:
        path = os.path.join(cluster.directory, "in.jsonl")
        harness.write_lines(path, lines)
        job = cluster.submit(path)["id"]
        hit = True
        for victim in ("worker-1", "worker-2", "worker-0"):
            state = harness.wait_for(
                lambda: (s := cluster.status(job))["request_counts"]["running"] > 0 and s
                or s["status"] == "completed" and s,
                "the job to run")
            hit = hit and state["status"] != "completed"
            cluster.workers[victim].kill9()
            cluster.start_worker(victim)
        state = cluster.wait_for_end(job, 300)
        assert state["status"] == "completed", state
        assert state["cached_tokens"] > 0, state
        assert harness.answers(cluster.results(job)) == expected
    return hit


def test_killed_workers_lose_no_prefix():
    count = max(40, 120 // harness.SLOW)
    while not kill_one_after_the_other(count):
        count *= 3
        assert count < 200_000, "the kills never met a running job"


def test_replicas_drained_and_killed_workers():
    """Two jobs on two pipelines, of which one is drained and the other loses a worker by kill -9 meanwhile; the
    second job finds prefixes of the first."""
    lines = tree_requests(200, seed=6)
    expected = unshared(lines)
    with harness.Cluster(LLAMA, workers=4, coordinator_flags=(*FP32, "--replicas", "2", *SMALL)) as cluster:
        path = os.path.join(cluster.directory, "in.jsonl")
        harness.write_lines(path, lines)
        jobs = [cluster.submit(path)["id"] for _ in range(2)]
        harness.wait_for(lambda: cluster.status(jobs[0])["request_counts"]["completed"] > 0, "answers")
        cluster.sluice("drain", "worker-1")
        cluster.workers["worker-2"].kill9()
        cluster.start_worker("worker-2")
        for job in jobs:
            state = cluster.wait_for_end(job, 300)
            assert state["status"] == "completed", state
            assert harness.answers(cluster.results(job)) == expected
            assert state["cached_tokens"] > state["prompt_tokens"] // 4, state
            assert f"({state['cached_tokens']} shared)" in cluster.sluice("status", job).stdout


if __name__ == "__main__":
    harness.run_tests(sys.modules[__name__])
