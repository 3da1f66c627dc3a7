"""/metrics of coordinator and workers after a job."""

import json
import os
import re
import sys
import time
import urllib.request

import harness

LLAMA = os.path.join(harness.MODELS, "llama-kjv")


def families(url):
    """{name: (type, help, bucket bounds)} of one exposition."""
    text = urllib.request.urlopen(url, timeout=10).read().decode()
    helps, types, bounds = {}, {}, {}
    for line in text.splitlines():
        if match := re.fullmatch(r"# HELP (\S+) (.*)", line):
            assert match[1] not in helps, f"{match[1]} is there twice"
            helps[match[1]] = match[2]
        elif match := re.fullmatch(r"# TYPE (\S+) (.*)", line):
            types[match[1]] = match[2]
        elif match := re.match(r'(\w+)_bucket\{.*\ble="([^"]+)"', line):
            bounds.setdefault(match[1], set()).add(match[2])
    return {name: (types[name], helps[name], bounds.get(name)) for name in types}


def scrape(url):
    """{name: sum over labels} of one exposition; checks its form."""
    text = urllib.request.urlopen(url, timeout=10).read().decode()
    values = {}
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        match = re.fullmatch(r"([a-zA-Z_:][\w:]*)(\{.*\})? (\S+)(?: \d+)?", line)
        assert match, line
        values[match[1]] = values.get(match[1], 0.0) + float(match[3])
    return values


def test_metrics_tell_what_happened():
    lines = harness.mixed_requests(20)
    with harness.Cluster(LLAMA, workers=2) as cluster:
        path = os.path.join(cluster.directory, "in.jsonl")
        harness.write_lines(path, [*lines, "not JSON"])
        job = cluster.submit(path)["id"]
        state = cluster.wait_for_end(job)
        assert state["request_counts"]["completed"] == 20
        assert state["request_counts"]["failed"] == 1
        values = scrape(cluster.metrics_url)
        assert values["sluice_prompt_tokens_total"] == state["prompt_tokens"]
        assert values["sluice_generation_tokens_total"] == state["generation_tokens"]
        assert values["sluice_request_success_total"] == 20
        assert values["sluice_worker_up"] == 2
        assert values["sluice_state_database_bytes"] > 0
        assert values["sluice_num_requests_running"] == 0
        assert values["sluice_num_requests_waiting"] == 0
        for worker in cluster.workers.values():
            values = scrape(worker.metrics_url)
            assert values["sluice_stage_busy_seconds_total"] > 0
            assert "sluice_stage_idle_seconds_total" in values
            assert "sluice_stage_waiting_seconds_total" in values
            assert values["sluice_memory_budget_bytes"] > values["sluice_memory_used_bytes"] > 0
        sent = sum(scrape(w.metrics_url).get("sluice_link_bytes_total", 0)
                   for w in cluster.workers.values())
        # At least the activations of each processed token crossed the link.
        assert sent > state["prompt_tokens"] * 4


def test_a_job_in_progress_tells_how_far_it_is():
    lines = [json.dumps({"prompt": f"Verse {i}", "max_tokens": 200, "ignore_eos": True}) for i in range(2000)]
    with harness.Cluster(LLAMA, workers=1) as cluster:
        path = os.path.join(cluster.directory, "in.jsonl")
        harness.write_lines(path, lines)
        job = cluster.submit(path)["id"]

        def series():
            text = urllib.request.urlopen(cluster.metrics_url, timeout=10).read().decode()
            return {match[1]: float(match[3]) for match in re.finditer(
                r'^sluice_job_(\w+)\{id="(\w+)"\} (\S+)$', text, re.M) if match[2] == job}

        def known():
            found = series()
            return len(found) == 3 and found
        found = harness.wait_for(known, "the job's tokens and time left")
        assert 0 < found["processed_tokens"] < found["expected_tokens"] <= 2000 * 220, found
        assert found["remaining_seconds"] > 0, found
        cluster.sluice("cancel", job)
        harness.wait_for(lambda: not series(), "the end of the job's series")


def test_a_name_means_one_thing_in_all_processes():
    with harness.Cluster(LLAMA, workers=2) as cluster:
        urls = [cluster.metrics_url, *(w.metrics_url for w in cluster.workers.values())]
        meanings = {}
        for url in urls:
            exported = families(url)
            for name, meaning in exported.items():
                assert name.startswith(("sluice_", "process_")), name
                assert meanings.setdefault(name, meaning) == meaning, name
            for name in ("resident_memory_bytes", "virtual_memory_bytes", "cpu_seconds_total",
                         "start_time_seconds", "open_fds", "max_fds"):
                assert f"process_{name}" in exported, name
            values = scrape(url)
            assert values["sluice_build_info"] == 1
            assert values["process_resident_memory_bytes"] > 1 << 20
            assert abs(values["process_start_time_seconds"] - time.time()) < 600
            assert 3 < values["process_open_fds"] < values["process_max_fds"]


def test_cluster_command_shows_the_split():
    with harness.Cluster(LLAMA, workers=2) as cluster:
        def ready():
            state = json.loads(cluster.sluice("cluster", "--json").stdout)
            workers = state["workers"]
            return (len(workers) == 2 and
                    all(w["state"] == "ready" for w in workers) and state)
        state = harness.wait_for(ready, "both workers to load")
        ranges = sorted((w["layer_begin"], w["layer_end"]) for w in state["workers"])
        assert ranges == [(0, 3), (3, 6)], ranges
        assert cluster.sluice("cluster").stdout.count("ready") == 2


if __name__ == "__main__":
    harness.run_tests(sys.modules[__name__])
