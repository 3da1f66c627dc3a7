"""`sluice trace`: one timeline of a coordinator and its workers while a job existed."""

import gzip
import json
import os
import sys

import harness

LLAMA = os.path.join(harness.MODELS, "llama-kjv")


def job_of(cluster, count=12, max_tokens=20):
    path = os.path.join(cluster.directory, "in.jsonl")
    harness.write_lines(path, [json.dumps({"custom_id": f"r{i}", "prompt": f"And the LORD spake unto {i}",
                                           "max_tokens": max_tokens, "ignore_eos": True}) for i in range(count)])
    return cluster.submit(path)["id"]


def spans_of(trace):
    """Returns the spans by process and row, in the order in which they began."""
    names = {}
    for event in trace["traceEvents"]:
        if event["ph"] == "M" and event["name"].endswith("_name"):
            names[event["pid"], event["tid"]] = event["args"]["name"]
    spans = {}
    for event in sorted((e for e in trace["traceEvents"] if e["ph"] == "X"), key=lambda e: (e["ts"], -e["dur"])):
        spans.setdefault((names[event["pid"], 0], names[event["pid"], event["tid"]]), []).append(event)
    return spans


def begin(span):
    return span["ts"]


def end(span):
    return span["ts"] + span["dur"]


ROUNDING_US = 0.01


def check_nesting(spans):
    """Of two spans of a row, one lies in the other or they do not overlap."""
    open_until = []
    for span in spans:
        while open_until and begin(span) >= open_until[-1] - ROUNDING_US:
            open_until.pop()
        assert not open_until or end(span) <= open_until[-1] + ROUNDING_US, span
        open_until.append(end(span))


def check_order(trace):
    """A step's plan leaves the coordinator, is computed by the first stage, then by the second, and comes back. On one
    machine, all clocks are one: a worker's times are late by no more than what was added to them."""
    spans = spans_of(trace)
    for row in spans.values():
        check_nesting(row)
    late = trace["otherData"]["clock_offsets_us"]
    assert set(late) == {"worker-0", "worker-1"} and all(us >= 0 for us in late.values()), late
    steps = {}
    for (process, row), row_spans in spans.items():
        if process == "coordinator" and row.startswith("pipeline 0 block "):
            for span in row_spans:
                steps.setdefault((span["args"]["epoch"], span["args"]["step"]), {})["sent"] = span
        if row == "compute":
            for span in row_spans:
                if span["name"] == "compute":
                    key = span["args"]["epoch"], span["args"]["step"]
                    steps.setdefault(key, {})[span["args"]["stage"]] = process.removeprefix("worker "), span
        if row == "send":
            for span in row_spans:
                steps.setdefault((span["args"]["epoch"], span["args"]["step"]), {})["link"] = span
    # The last plan, which only takes sequences out, may be under way when the job ends.
    (whole,) = spans["coordinator", "job"]
    steps = {key: step for key, step in steps.items() if "sent" in step and end(step["sent"]) <= end(whole)}
    assert len(steps) >= 20, len(steps)
    for key, step in steps.items():
        assert set(step) == {"sent", 0, 1, "link"}, (key, step)
        (first_name, first), (second_name, second), sent = step[0], step[1], step["sent"]
        assert {first_name, second_name} == {"worker-0", "worker-1"}, step
        assert first["args"]["tokens"] == second["args"]["tokens"] == sent["args"]["tokens"], step
        assert begin(sent) <= begin(first) + ROUNDING_US, step
        assert begin(first) <= begin(step["link"]) + ROUNDING_US, step
        # The second stage begins when the step's first micro-batch is there.
        assert begin(first) - late[first_name] <= begin(second) + ROUNDING_US, step
        assert begin(second) >= begin(step["link"]) - late[first_name] - ROUNDING_US, step
        assert end(second) - late[second_name] <= end(sent) + ROUNDING_US, step
    return spans


def timeless(trace):
    return [{key: value for key, value in event.items() if key not in ("ts", "dur")} for event in trace["traceEvents"]]


def test_spans_of_all_processes_lie_in_order():
    with harness.Cluster(LLAMA, workers=2, coordinator_flags=["--plan", "off"]) as cluster:
        job = job_of(cluster)
        assert cluster.wait_for_end(job)["status"] == "completed"
        path = os.path.join(cluster.directory, "trace.json")
        done = cluster.sluice("trace", job, "-o", path)
        assert done.stdout == "" and "missing" not in done.stderr, done
        with open(path) as f:
            trace = json.load(f)
        assert trace["otherData"]["job"] == job and trace["otherData"]["settled"] is True, trace["otherData"]
        spans = check_order(trace)
        (whole,) = spans["coordinator", "job"]
        assert whole["ts"] == 0 and whole["args"] == {"id": job, "requests": 12}, whole
        # To stdout it is the same, and compressed, too. When the job was made is known by the wall clock, which differs by
        # some nanoseconds each time.
        assert timeless(json.loads(cluster.sluice("trace", job).stdout)) == timeless(trace)
        cluster.sluice("trace", job, "-o", path + ".gz")
        with gzip.open(path + ".gz") as f:
            assert timeless(json.load(f)) == timeless(trace)


def test_errors_say_what_to_do():
    with harness.Cluster(LLAMA, workers=2, coordinator_flags=["--plan", "off"]) as cluster:
        done = cluster.sluice("trace", "job_99", check=False)
        assert done.returncode == 2 and "job_99" in done.stderr, done
        job = job_of(cluster)
        assert cluster.wait_for_end(job)["status"] == "completed"
        done = cluster.sluice("trace", job, "-o", "/no/such/folder/trace.json", check=False)
        assert done.returncode == 2 and "/no/such/folder" in done.stderr, done
        # What was before its start, a coordinator does not know.
        cluster.coordinator.kill9()
        cluster.start_coordinator()
        path = os.path.join(cluster.directory, "trace.json")
        done = cluster.sluice("trace", job, "-o", path, check=False)
        assert done.returncode == 1 and "nothing is kept of the time of" in done.stderr, done
        assert "soon after" in done.stderr and not os.path.exists(path), done


def test_a_running_job_and_one_without_workers():
    with harness.Cluster(LLAMA, workers=2, coordinator_flags=["--plan", "off"], started=False) as cluster:
        cluster.start_coordinator()
        job = job_of(cluster, count=2000, max_tokens=150)
        done = cluster.sluice("trace", job, check=False)
        assert done.returncode == 1 and "no step of" in done.stderr and "try again later" in done.stderr, done
        cluster.start_worker("worker-0")
        cluster.start_worker("worker-1")

        def rows():
            done = cluster.sluice("trace", job, check=False)
            return set(spans_of(json.loads(done.stdout))) if done.returncode == 0 else set()
        harness.wait_for(lambda: {("coordinator", "pipeline 0 block 0"), ("worker worker-0", "compute"),
                                  ("worker worker-0", "send"), ("worker worker-1", "compute")} <= rows(),
                         "spans of both workers while the job runs")
        assert cluster.status(job)["status"] == "in_progress"
        cluster.sluice("cancel", job)


if __name__ == "__main__":
    harness.run_tests(sys.modules[__name__])
