"""A job of 100,000 short requests, with the coordinator's memory watched."""

import json
import os
import sys
import time

import harness

LLAMA = os.path.join(harness.MODELS, "llama-kjv")


def test_100000_requests_in_under_300_mb():
    count = 100_000 // harness.SLOW
    lines = [json.dumps({"custom_id": f"n{i}", "method": "POST", "url": "/v1/completions",
                         "body": {"prompt": f"Behold {i % 97}", "max_tokens": 1 + i % 2,
                                  "temperature": 0}})
             for i in range(count)]
    with harness.Cluster(LLAMA, workers=1, worker_threads=2) as cluster:
        path = os.path.join(cluster.directory, "in.jsonl")
        harness.write_lines(path, lines)
        start = time.monotonic()
        job = cluster.submit(path)["id"]
        accepted = time.monotonic()
        state = cluster.wait_for_end(job, 900)
        ended = time.monotonic()
        assert state["request_counts"]["completed"] == count, state
        output = os.path.join(cluster.directory, "out.jsonl")
        cluster.sluice("results", job, "--output", output)
        seen = 0
        with open(output) as f:
            for number, line in enumerate(f):
                result = json.loads(line)
                assert result["custom_id"] == f"n{number}" and not result["error"]
                seen += 1
        assert seen == count
        peak = cluster.coordinator.peak_rss_mb()
        print(f"{count} requests accepted in {accepted - start:.1f} s, run in "
              f"{ended - accepted:.1f} s, read in {time.monotonic() - ended:.1f} s; "
              f"coordinator peak {peak:.0f} MB")
        # A sanitizer's shadow memory is not the coordinator's.
        assert peak < 300 or harness.SLOW > 1, f"coordinator took {peak:.0f} MB"


if __name__ == "__main__":
    harness.run_tests(sys.modules[__name__])
