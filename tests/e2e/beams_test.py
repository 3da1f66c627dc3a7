"""Beam searches: answers are those of transformers' generate(num_beams=...), bit for bit the same whatever the split,
the sharing and the faults."""

import csv
import json
import os
import sys
import tempfile

import harness

FP32 = ("--dtype", "float32")
SMALL = ("--gbs", "6", "--max-step-tokens", "48")
GOLDEN = os.path.join(os.path.dirname(harness.MODELS), "golden", "beams")
LLAMA = os.path.join(harness.MODELS, "llama-kjv")


def line(name, body, url="/v1/completions"):
    return json.dumps({"custom_id": name, "method": "POST", "url": url, "body": body})


def cases(model):
    with open(os.path.join(GOLDEN, f"{model}.json")) as f:
        return json.load(f)


def body_of(case, answers=None):
    return {"prompt": case["prompt"], "use_beam_search": True, "n": answers or case["width"],
            "best_of": case["width"], "max_tokens": case["max_tokens"], "length_penalty": case["length_penalty"],
            "early_stopping": case["early_stopping"]}


def requests(model):
    return [line(f"r{i}", body_of(case)) for i, case in enumerate(cases(model))]


def check(answers, model):
    for i, case in enumerate(cases(model)):
        choices, usage = answers[f"r{i}"]
        expected = case["answers"]
        found = [(choice["text"], choice["finish_reason"] == "stop") for choice in choices]
        assert found == [(answer["text"], answer["ended"]) for answer in expected], (case, choices)
        assert usage["completion_tokens"] == sum(len(a["tokens"]) + a["ended"] for a in expected), (case, usage)


def test_answers_are_those_of_transformers():
    for model in ("llama-kjv", "opt-kjv"):
        _, results = harness.run(os.path.join(harness.MODELS, model), requests(model), *FP32)
        check(harness.answers(results), model)


def test_nothing_changes_them():
    lines = requests("llama-kjv")[::3]
    expected = harness.answers(harness.run(LLAMA, lines, *FP32)[1])
    for flags in ((*SMALL, "--workers", "2", "--num-microbatches", "2"),
                  ("--gbs", "3", "--max-step-tokens", "16", "--workers", "3"),
                  (*SMALL, "--share-prefixes", "off", "--workers", "2"),
                  (*SMALL, "--no-refill"),
                  (*SMALL, "--tensor-parallel", "2", "--workers", "2", "--order", "longest")):
        figures, results = harness.run(LLAMA, lines, *FP32, *flags)
        assert harness.answers(results) == expected, flags
        assert figures["generation_tokens"] == sum(usage["completion_tokens"] for _, usage in expected.values()), figures
        assert figures["prompt_tokens"] == sum(usage["prompt_tokens"] for _, usage in expected.values()), figures


def test_the_best_and_prompts_and_chats():
    case = next(case for case in cases("llama-kjv") if case["width"] == 4)
    texts = [answer["text"] for answer in case["answers"]]
    chat = {"messages": [{"role": "user", "content": "Who was the king?"}], "max_tokens": 6, "n": 3,
            "use_beam_search": True}
    # The model samples by its generation_config.json, and the job with a temperature: beams are not sampled.
    _, results = harness.run(LLAMA, [
        line("two", body_of(case, 2)), line("list", {**body_of(case, 2), "prompt": [case["prompt"], "Behold"]}),
        line("one", {"prompt": "Behold", "max_tokens": 9, "use_beam_search": True}),
        line("greedy", {"prompt": "Behold", "max_tokens": 9, "temperature": 0}),
        line("chat", chat, "/v1/chat/completions"), line("bad", {**body_of(case), "temperature": 1})],
        *FP32, "--temperature", "0.7")
    answers = harness.answers(results[:5])
    assert [choice["text"] for choice in answers["two"][0]] == texts[:2], answers["two"]
    assert [choice["text"] for choice in answers["list"][0]][:2] == texts[:2], answers["list"]
    assert [choice["index"] for choice in answers["list"][0]] == [0, 1, 2, 3]
    assert answers["one"] == answers["greedy"]
    assert len({choice["message"]["content"] for choice in answers["chat"][0]}) == 3, answers["chat"]
    assert "does not go with" in results[5]["error"]["message"], results[5]
    with tempfile.TemporaryDirectory(prefix="sluice-e2e-") as directory:
        source, target = os.path.join(directory, "in.jsonl"), os.path.join(directory, "out.csv")
        harness.write_lines(source, [line("two", body_of(case, 2))])
        harness.sluice("run", "--model", LLAMA, "-i", source, "-o", target, "-q", *FP32)
        with open(target, newline="") as f:
            _, row = csv.reader(f)
        assert json.loads(row[1]) == texts[:2], row


def kill_one_after_the_other(count):
    some = requests("llama-kjv")[1::2]
    lines = [json.dumps({**json.loads(text), "custom_id": f"r{i}"}) for i, text in enumerate(some * count)]
    expected = harness.answers(harness.run(LLAMA, lines[:len(some)], *FP32)[1])
    with harness.Cluster(LLAMA, workers=4, coordinator_flags=(*FP32, *SMALL, "--replicas", "2")) as cluster:
        path = os.path.join(cluster.directory, "in.jsonl")
        harness.write_lines(path, lines)
        job = cluster.submit(path)["id"]
        hit = True
        for victim in ("worker-1", "worker-2", "worker-0"):
            state = harness.wait_for(
                lambda: (s := cluster.status(job))["request_counts"]["running"] > 0 and s
                or s["status"] == "completed" and s, "the job to run")
            hit = hit and state["status"] != "completed"
            cluster.workers[victim].kill9()
            cluster.start_worker(victim)
        state = cluster.wait_for_end(job, 300)
        assert state["status"] == "completed", state
        answers = harness.answers(cluster.results(job))
        assert len(answers) == len(lines)
        for name, answer in answers.items():
            assert answer == expected[f"r{int(name[1:]) % len(some)}"], name
    return hit


def test_killed_workers_change_nothing():
    count = 1
    while not kill_one_after_the_other(count):
        count *= 3
        assert count < 1000, "the kills never met a running job"


if __name__ == "__main__":
    harness.run_tests(sys.modules[__name__])
