"""/metrics of coordinator and workers after a job."""

import os
import re
import sys
import urllib.request

import harness

LLAMA = os.path.join(harness.MODELS, "llama-kjv")


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
        assert values["sluice_num_requests_running"] == 0
        assert values["sluice_num_requests_waiting"] == 0
        for worker in cluster.workers.values():
            values = scrape(worker.metrics_url)
            assert values["sluice_stage_busy_seconds_total"] > 0
            assert "sluice_stage_idle_seconds_total" in values
            assert "sluice_stage_waiting_seconds_total" in values
        sent = sum(scrape(w.metrics_url).get("sluice_link_bytes_total", 0)
                   for w in cluster.workers.values())
        # At least the activations of each processed token crossed the link.
        assert sent > state["prompt_tokens"] * 4


def test_cluster_command_shows_the_split():
    import json
    with harness.Cluster(LLAMA, workers=2) as cluster:
        def ready():
            state = json.loads(cluster.sluice("cluster", "--json").stdout)
            workers = state["workers"]
            return (len(workers) == 2 and
                    all(w["state"] == "WORKER_STATE_READY" for w in workers) and state)
        state = harness.wait_for(ready, "both workers to load")
        ranges = sorted((w["layer_begin"], w["layer_end"]) for w in state["workers"])
        assert ranges == [(0, 3), (3, 6)], ranges
        assert cluster.sluice("cluster").stdout.count("READY") == 2


if __name__ == "__main__":
    harness.run_tests(sys.modules[__name__])
