"""Prompts cut into slices that follow each other through the stages: however they are cut, and
whatever dies meanwhile, the tokens are those of a single stage that computes each prompt whole."""

import json
import os
import sys

import harness

LLAMA = os.path.join(harness.MODELS, "llama-kjv")
FP32 = ("--dtype", "float32")


def long_requests(count):
    """Prompts of many slices among short ones; some are scored, too."""
    lines = []
    for i, line in enumerate(harness.mixed_requests(count, max_tokens=12)):
        request = json.loads(line)
        if i % 3 == 0:
            request["body"]["prompt"] = " ".join(
                harness.PROMPTS[(i + k) % len(harness.PROMPTS)] for k in range(12))
        if i % 6 == 0:
            request["body"].update(echo=True, logprobs=2)
        lines.append(json.dumps(request))
    return lines


def whole(lines):
    return harness.answers(harness.run(LLAMA, lines, *FP32, "--max-step-tokens", "2048",
                                       "--policy", "slicing=off")[1])


def test_any_slicing_gives_the_same_answers():
    lines = long_requests(40)
    expected = whole(lines)
    # Few sequences in flight leave room for slices, in one block or in several.
    for flags in (("--max-step-tokens", "16", "--policy", "slicing=off"),
                  ("--max-step-tokens", "16", "--policy", "slicing=on"),
                  ("--max-step-tokens", "16", "--policy", "slice-context=30"),
                  ("--max-step-tokens", "3", "--gbs", "1"),
                  ("--max-step-tokens", "7", "--num-microbatches", "2"),
                  ("--max-step-tokens", "16", "--no-refill"),
                  ("--max-step-tokens", "16", "--policy", "packing=off")):
        gbs = () if "--gbs" in flags else ("--gbs", "3")
        got = harness.answers(harness.run(LLAMA, lines, *FP32, "--workers", "3", *gbs,
                                          *flags)[1])
        assert got == expected, flags


def test_settings_that_contradict_each_other_are_refused():
    done = harness.sluice("run", "--model", LLAMA, "-i", "-", "-o", "-", "--policy", "packing=off slice-context=100",
                          check=False, input="{}\n")
    assert done.returncode == 2 and "slice-context=100 is for packed steps" in done.stderr, done


def kill_one_of_three(count):
    lines = long_requests(count)
    expected = whole(lines)
    flags = (*FP32, "--gbs", "2", "--max-step-tokens", "8", "--policy", "slice-context=100")
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
        got = harness.answers(cluster.results(job))
        assert got == expected
    return hit


def test_killed_workers_lose_no_slice():
    count = max(40, 120 // harness.SLOW)
    while not kill_one_of_three(count):
        count *= 3
        assert count < 200_000, "the kills never met a running job"


if __name__ == "__main__":
    harness.run_tests(sys.modules[__name__])
