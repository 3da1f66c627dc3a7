"""The batch script for Slurm, on a real Slurm of two nodes: it goes on after the end of its time and after a node's
failure, and ends with the answers of `sluice run`."""

import json
import os
import re
import stat
import subprocess
import sys

import deploy_support as support
import harness
from slurm_cluster import SlurmCluster

LLAMA = os.path.join(harness.MODELS, "llama-kjv")
SCRIPT = os.path.join(support.DEPLOY, "slurm", "sluice.sbatch")


class BatchJob:
    """A job of the batch script in `slurm`."""

    def __init__(self, slurm, directory, *flags):
        self.slurm = slurm
        self.output = os.path.join(directory, "out.jsonl")
        self.state = f"{self.output}.sluice"
        self.log_path = os.path.join(directory, "job.log")
        environment = {**slurm.environment, "SLUICE_BIN": harness.BIN, "SLUICE_WORKER_NO_PROFILE": "true",
                       "SLUICE_WORKER_THREADS": "1", "SLUICE_WORKER_HOST_MEMORY": "256MiB"}
        done = subprocess.run(
            ["sbatch", "--parsable", "--output", self.log_path, SCRIPT, "--model", LLAMA, "--input",
             os.path.join(directory, "in.jsonl"), "--output", self.output, *flags],
            capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stderr
        self.number = done.stdout.strip()

    def log(self):
        if not os.path.exists(self.log_path):
            return ""
        with open(self.log_path) as f:
            return f.read()

    def begun(self, times):
        """Waits until it runs for the `times`th time, and returns where its coordinator is."""
        def look():
            assert self.slurm.job(self.number)["JobState"] not in ("FAILED", "COMPLETED"), self.log()
            found = re.findall(r"coordinator on (\S+);", self.log())
            return found[-1] if len(found) == times else None
        return harness.wait_for(look, f"the job to begin: {times}")

    def sluice(self, coordinator, *args, trusted=True):
        state = self.state
        trust = ["--tls-ca", f"{state}/tls.pem", "--tls-cert", f"{state}/tls.pem", "--tls-key", f"{state}/tls.key",
                 "--tls-server-name", "sluice.job"]
        token = ["--token-file", f"{state}/user-token"] if trusted else []
        return harness.sluice("--coordinator", coordinator, *trust, *token, *args, check=False)

    def answered(self, coordinator, at_least):
        """Waits until the coordinator answers, and until it has so many results; returns how many there are, and of
        how many."""
        def look():
            done = self.sluice(coordinator, "status", "job_1", "--json")
            counts = json.loads(done.stdout)["request_counts"] if done.returncode == 0 else {"completed": -1}
            return counts if counts["completed"] >= at_least else None
        counts = harness.wait_for(look, f"{at_least} results")
        return counts["completed"], counts["total"]


def test_a_job_outlives_its_time_limit_and_a_node_and_answers_as_in_one_process(directory):
    support.need("sbatch", "slurmctld", "slurmd", "munged", "openssl")
    lines = harness.mixed_requests(1000, max_tokens=96)
    harness.write_lines(os.path.join(directory, "in.jsonl"), lines)
    with SlurmCluster(directory) as slurm:
        job = BatchJob(slurm, directory, "--tls")
        coordinator = job.begun(1)
        answered, total = job.answered(coordinator, 1)
        assert answered < total, "too few requests to interrupt anything"
        # Nobody else can use it, or read its secrets.
        refused = job.sluice(coordinator, "list", trusted=False)
        assert "a token is needed" in refused.stderr, refused
        assert stat.S_IMODE(os.stat(job.state).st_mode) == 0o700
        for secret in ("cluster-token", "user-token", "tls.key"):
            assert stat.S_IMODE(os.stat(os.path.join(job.state, secret)).st_mode) == 0o600, secret
        for process in os.popen("ps -eo args").read(), job.log():
            with open(f"{job.state}/user-token") as user, open(f"{job.state}/cluster-token") as cluster:
                assert user.read().strip() not in process and cluster.read().strip() not in process
        # What Slurm does shortly before the time limit.
        slurm.call("scancel", "--batch", "--signal=USR1", job.number)
        coordinator = job.begun(2)
        assert "the time limit is near" in job.log(), job.log()
        assert job.answered(coordinator, 0)[0] >= answered, "results were lost"
        # A node that fails takes the job with it; it goes on when there are two again.
        slurm.call("scontrol", "update", "NodeName=n2", "State=DOWN", "Reason=test")
        harness.wait_for(lambda: slurm.job(job.number)["JobState"] == "PENDING", "the job to be queued again")
        def resume():  # refused while the job is still being ended there
            slurm.call("scontrol", "update", "NodeName=n2", "State=RESUME", check=False)
            return "DOWN" not in slurm.call("sinfo", "-h", "-N", "-n", "n2", "-o", "%T").upper()
        harness.wait_for(resume, "the node to come back")
        job.begun(3)
        harness.wait_for(lambda: slurm.job(job.number)["JobState"] == "COMPLETED", "the job's end")
        state = slurm.job(job.number)
        assert state["ExitCode"] == "0:0" and state["Restarts"] == "2", (state, job.log())
    assert not os.path.exists(job.state), os.listdir(job.state)
    with open(job.output) as f:
        got = harness.answers([json.loads(line) for line in f])
    _, expected = harness.run(LLAMA, lines)
    assert got == harness.answers(expected), "other answers than those of `sluice run`"


def test_what_is_wrong_is_said_before_anything_starts(directory):
    def refused(*flags, **environment):
        done = subprocess.run(["bash", SCRIPT, *flags], capture_output=True, text=True,
                              env={**os.environ, "SLUICE_BIN": harness.BIN, **environment})
        assert done.returncode == 2, done
        return done.stderr
    told = subprocess.run(["bash", SCRIPT, "--help"], capture_output=True, text=True, check=True).stdout
    assert "--min-workers" in told and "SLUICE_BIN" in told, told
    assert "this is for sbatch" in refused("--model", LLAMA, "--input", SCRIPT, "--output", "x")
    job = {"SLURM_JOB_ID": "1"}
    assert "--output is missing" in refused("--model", LLAMA, "--input", SCRIPT, **job)
    assert "no such folder" in refused("--model", f"{directory}/none", "--input", SCRIPT, "--output", "x", **job)
    assert "cannot be read" in refused("--model", LLAMA, "--input", f"{directory}/none", "--output", "x", **job)
    assert "--tries wants a value" in refused("--tries", **job)


if __name__ == "__main__":
    harness.give_directories(globals())
    harness.run_tests(sys.modules[__name__])
