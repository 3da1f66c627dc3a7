"""Several answers to a prompt: each is, bit for bit, that of a line of its own with its seed, whatever the
split, the sharing and the faults."""

import csv
import json
import os
import re
import sys
import tempfile
import urllib.request

import harness

LLAMA = os.path.join(harness.MODELS, "llama-kjv")
FP32 = ("--dtype", "float32")
SMALL = ("--gbs", "6", "--max-step-tokens", "48")


def line(name, body, url="/v1/completions"):
    return json.dumps({"custom_id": name, "method": "POST", "url": url, "body": body})


def requests(count, max_tokens=24):
    """Lines of one to six choices to prompts of one or several pages; a list of prompts, chats and a greedy one
    among them."""
    lines = []
    for i in range(count):
        words = " ".join(harness.PROMPTS[(i + k) % len(harness.PROMPTS)] for k in range(1 + i % 9))
        body = {"prompt": words, "max_tokens": 1 + (i * 7) % max_tokens, "n": 1 + i % 6, "seed": 100 * i,
                "temperature": 0 if i % 5 == 2 else 0.5 + i % 3 * 0.4}
        if i % 4 == 1:
            body["logprobs"] = 1
        if i % 7 == 3:
            body["prompt"] = [words, words + " and"]
        if i % 7 == 5:
            body["stop"] = ["the"]
        if i % 7 == 6:
            body["seed"] = 2 ** 64 - 2  # the next but one is 0
        lines.append(line(f"r{i}", body))
    return lines


def alone(lines):
    """What the lines are to give, from lines of a choice each."""
    singles, parts = [], {}
    for text in lines:
        request = json.loads(text)
        body = request["body"]
        n = body.pop("n")
        prompts = body["prompt"] if isinstance(body["prompt"], list) else [body["prompt"]]
        names = parts[request["custom_id"]] = []
        for p, prompt in enumerate(prompts):
            for k in range(n):
                names.append((f"{request['custom_id']}-{p}-{k}", k))
                singles.append(line(names[-1][0], {**body, "prompt": prompt, "seed": (body["seed"] + k) % 2 ** 64}))
    figures, results = harness.run(LLAMA, singles, *FP32, "--share-prefixes", "off")
    single = harness.answers(results)
    expected = {}
    for name, names in parts.items():
        choices, usage = [], {"prompt_tokens": 0, "completion_tokens": 0}
        for index, (part, k) in enumerate(names):
            [choice], used = single[part]
            choices.append({**choice, "index": index})
            usage["prompt_tokens"] += used["prompt_tokens"] if k == 0 else 0
            usage["completion_tokens"] += used["completion_tokens"]
        usage["total_tokens"] = sum(usage.values())
        expected[name] = (choices, usage)
    return expected


def test_choices_are_those_of_lines_of_their_own():
    lines = requests(40)
    expected = alone(lines)
    assert len({c["text"] for c in expected["r5"][0]}) > 2, expected["r5"]
    assert len({c["text"] for c in expected["r2"][0]}) == 1, "greedy ones are equal"
    for flags, shared in ((SMALL, True),
                          ((*SMALL, "--workers", "2", "--num-microbatches", "2"), True),
                          ((*SMALL, "--share-prefixes", "off", "--workers", "2"), False),
                          ((*SMALL, "--no-refill"), False),
                          ((*SMALL, "--order", "longest"), True)):
        figures, results = harness.run(LLAMA, lines, *FP32, *flags)
        assert harness.answers(results) == expected, flags
        assert figures["prompt_tokens"] == sum(usage["prompt_tokens"] for _, usage in expected.values()), figures
        assert figures["generation_tokens"] == sum(usage["completion_tokens"] for _, usage in expected.values())
        assert figures["requests"] == figures["completed"] == len(lines), figures


def test_choices_share_their_prompt():
    """Its whole pages are computed once, though usage tells nothing of it: the line itself computed them."""
    prompt = [5 + i % 200 for i in range(200)]
    body = {"prompt": prompt, "max_tokens": 2, "n": 32, "temperature": 1, "seed": 1}
    with harness.Cluster(LLAMA, workers=1, coordinator_flags=(*FP32, "--gbs", "32", "--max-step-tokens", "64")) as cluster:
        path = os.path.join(cluster.directory, "in.jsonl")
        harness.write_lines(path, [line("a", body)])
        job = cluster.submit(path)["id"]
        state = cluster.wait_for_end(job)
        assert (state["prompt_tokens"], state["cached_tokens"]) == (200, 0), state
        text = urllib.request.urlopen(cluster.metrics_url, timeout=10).read().decode()
        metrics = {name: float(value) for name, value in re.findall(r"^(\w+) (\S+)$", text, re.M)}
        assert metrics["sluice_prompt_tokens_total"] == 200, metrics
        assert metrics["sluice_generation_tokens_total"] == 64, metrics
        assert metrics["sluice_prefix_cache_queries_total"] == 32 * 200, metrics
        assert metrics["sluice_prefix_cache_hits_total"] == 31 * 192, metrics


def test_the_best_are_chosen_by_their_mean_log_probability():
    body = {"prompt": "And it came to pass", "max_tokens": 12, "temperature": 1.2, "seed": 3}
    chat = {"messages": [{"role": "user", "content": "Who was the king?"}], "max_tokens": 6, "temperature": 1, "seed": 8}
    lines = [line("all", {**body, "n": 8, "logprobs": 0}), line("best", {**body, "n": 3, "best_of": 8}),
             line("shown", {**body, "best_of": 8, "logprobs": 0}),
             line("chat", {**chat, "n": 2, "best_of": 5}, "/v1/chat/completions"),
             line("chats", {**chat, "n": 5, "logprobs": True}, "/v1/chat/completions")]
    answers = harness.answers(harness.run(LLAMA, lines, *FP32)[1])

    def mean(logprobs):
        return sum(logprobs) / len(logprobs)
    ranked = sorted(answers["all"][0], key=lambda c: -mean(c["logprobs"]["token_logprobs"]))
    best, usage = answers["best"]
    assert [c["text"] for c in best] == [c["text"] for c in ranked[:3]], (best, ranked)
    assert [c["index"] for c in best] == [0, 1, 2] and all(c["logprobs"] is None for c in best), best
    assert usage == answers["all"][1], usage  # all that was generated
    assert answers["shown"][0] == [{**ranked[0], "index": 0}], answers["shown"]
    chats = sorted(answers["chats"][0], key=lambda c: -mean([t["logprob"] for t in c["logprobs"]["content"]]))
    assert [c["message"] for c in answers["chat"][0]] == [c["message"] for c in chats[:2]], answers["chat"]
    assert all(c["logprobs"] is None for c in answers["chat"][0])


def test_tables_have_all_choices_of_a_line():
    with tempfile.TemporaryDirectory(prefix="sluice-e2e-") as directory:
        source, target = os.path.join(directory, "in.jsonl"), os.path.join(directory, "out.csv")
        body = {"prompt": "Behold", "max_tokens": 3, "temperature": 1, "seed": 5, "n": 3}
        harness.write_lines(source, [line("a", body), line("b", {**body, "n": 1})])
        harness.sluice("run", "--model", LLAMA, "-i", source, "-o", target, "-q")
        with open(target, newline="") as f:
            _, three, one = csv.reader(f)
        assert json.loads(three[1])[0] == one[1] and len(json.loads(three[1])) == 3, three
        assert json.loads(three[2]) == [one[2]] * 3, three


def kill_all(count):
    lines = requests(count, max_tokens=60)
    expected = alone(lines)
    flags = (*FP32, "--gbs", "4", "--max-step-tokens", "32", "--keep-interval", "0.2")
    with harness.Cluster(LLAMA, workers=2, coordinator_flags=flags) as cluster:
        path = os.path.join(cluster.directory, "in.jsonl")
        harness.write_lines(path, lines)
        job = cluster.submit(path)["id"]
        hit = True
        for victim in ("worker-1", None, "worker-0", None):
            known = cluster.status(job)["processed_tokens"]
            harness.wait_for(
                lambda: (s := cluster.status(job))["processed_tokens"] > known + 200 or s["status"] == "completed",
                "more tokens", 120)
            hit = hit and cluster.status(job)["status"] != "completed"
            if victim is None:
                cluster.coordinator.kill9()
                cluster.start_coordinator()
            else:
                cluster.workers[victim].kill9()
                cluster.start_worker(victim)
        state = cluster.wait_for_end(job, 300)
        assert state["status"] == "completed", state
        results = cluster.results(job)
        assert len(results) == len(lines)
        assert harness.answers(results) == expected
        assert state["generation_tokens"] == sum(usage["completion_tokens"] for _, usage in expected.values()), state
        assert state["prompt_tokens"] == sum(usage["prompt_tokens"] for _, usage in expected.values()), state
    return hit


def test_workers_and_coordinators_that_are_killed_lose_no_choice():
    count = max(20, 40 // harness.SLOW)
    while not kill_all(count):
        count *= 3
        assert count < 200_000, "the kills never met a running job"


if __name__ == "__main__":
    harness.run_tests(sys.modules[__name__])
