"""TLS, tokens and the cluster's credential, with the real programs."""

import json
import os
import ssl
import subprocess
import sys
import urllib.request

import harness
from harness import (BIN, MODELS, Cluster, answers, mixed_requests, run_tests, sluice,
                     wait_for, write_lines)

MODEL = os.path.join(MODELS, "llama-kjv")


def make_certificates(directory, *names):
    """Makes an authority, and certificates of machines, as an operator does; returns the paths, without .pem and .key."""
    folder = os.path.join(directory, "tls")
    subprocess.run([os.path.join(os.path.dirname(harness.TESTS), "deploy", "tls", "make.sh"), folder, *names], check=True,
                   capture_output=True)
    return [os.path.join(folder, name) for name in ("ca", *names)]


def make_token(tokens, name, *flags):
    return sluice("token", "create", "--file", tokens, "--name", name, *flags).stdout.strip()


def tls_flags(authority, path):
    return ["--tls-ca", f"{authority}.pem", "--tls-cert", f"{path}.pem",
            "--tls-key", f"{path}.key"]


def with_token(token, action):
    os.environ["SLUICE_TOKEN"] = token
    try:
        return action()
    finally:
        del os.environ["SLUICE_TOKEN"]


def get(url, context=None, token=None):
    request = urllib.request.Request(url)
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    with urllib.request.urlopen(request, context=context, timeout=60) as answer:
        return answer.read().decode()


def test_a_whole_cluster_speaks_mutual_tls_and_asks_for_tokens(directory):
    authority, machine = make_certificates(directory, "machine")
    secret = os.path.join(directory, "cluster-token")
    with open(secret, "w") as f:
        f.write("0123456789abcdef0123456789abcdef\n")
    tokens = os.path.join(directory, "tokens.json")
    user = make_token(tokens, "user", "--tenant", "lab")
    other = make_token(tokens, "other", "--tenant", "shop")
    requests = mixed_requests(12)
    path = os.path.join(directory, "in.jsonl")
    write_lines(path, requests)
    # What the same cluster answers in the clear.
    with Cluster(MODEL, workers=2) as plain:
        job = plain.submit(path)["id"]
        plain.wait_for_end(job)
        expected = answers(plain.results(job))

    trust = [*tls_flags(authority, machine), "--cluster-token-file", secret]
    audit = os.path.join(directory, "audit.jsonl")
    with Cluster(MODEL, workers=2, worker_flags=trust,
                 coordinator_flags=[*trust, "--tokens", tokens,
                                    "--audit-log", audit]) as cluster:
        client = tls_flags(authority, machine)
        call = lambda *args, **kw: cluster.sluice(*client, *args, **kw)
        refused = call("list", check=False)
        assert refused.returncode == 1 and "a token is needed" in refused.stderr, refused.stderr
        clear = with_token(user, lambda: cluster.sluice("list", check=False))
        assert clear.returncode == 4, clear

        submitted = with_token(user, lambda: call("submit", "-i", path, "--json"))
        job = json.loads(submitted.stdout)["id"]
        with_token(user, lambda: call("watch", job))
        lines = with_token(user, lambda: call("results", job)).stdout.splitlines()
        assert answers([json.loads(line) for line in lines]) == expected

        hidden = with_token(other, lambda: call("status", job, check=False))
        assert hidden.returncode == 2 and f"no job {job}" in hidden.stderr, hidden.stderr

        sluice("token", "revoke", "--file", tokens, "--name", "user")
        revoked = with_token(user, lambda: call("status", job, check=False))
        assert "revoked" in revoked.stderr, revoked.stderr

        # The metrics are behind the same TLS.
        context = ssl.create_default_context(cafile=f"{authority}.pem")
        context.load_cert_chain(f"{machine}.pem", f"{machine}.key")
        assert cluster.metrics_url.startswith("https://"), cluster.metrics_url
        assert "sluice_workers" in get(cluster.metrics_url, context)
        for worker in cluster.workers.values():
            assert worker.metrics_url.startswith("https://"), worker.metrics_url
            assert "sluice_worker_steps_total" in get(worker.metrics_url, context)
    with open(audit) as f:
        entries = [json.loads(line) for line in f]
    assert any(e["who"] == "user" and e["what"] == "sluice.v1.JobService/CreateJob"
               and e["outcome"] == "allowed" for e in entries), entries
    assert any("revoked" in e["outcome"] for e in entries), entries
    assert not any(user in json.dumps(e) for e in entries)


def test_new_certificates_and_tokens_under_a_running_job(directory):
    authority, machine = make_certificates(directory, "machine")
    secret, tokens = os.path.join(directory, "cluster-token"), os.path.join(directory, "tokens.json")
    with open(secret, "w") as f:
        f.write("0123456789abcdef0123456789abcdef\n")
    first = make_token(tokens, "first", "--tenant", "lab")
    path = os.path.join(directory, "in.jsonl")
    write_lines(path, mixed_requests(400))
    trust = [*tls_flags(authority, machine), "--cluster-token-file", secret]
    with Cluster(MODEL, workers=2, worker_flags=trust,
                 coordinator_flags=[*trust, "--plan", "off", "--gbs", "2", "--tokens", tokens]) as cluster:
        call = lambda token, *args: with_token(token, lambda: cluster.sluice(*tls_flags(authority, machine), *args))
        job = json.loads(call(first, "submit", "-i", path, "--json").stdout)["id"]
        state = lambda token: json.loads(call(token, "status", job, "--json").stdout)
        wait_for(lambda: state(first)["request_counts"]["completed"] > 0, "the first answer")
        with open(f"{machine}.pem") as f:
            old = f.read()
        make_certificates(directory, "machine")
        with open(f"{machine}.pem") as f:
            assert f.read() != old
        second = make_token(tokens, "second", "--tenant", "lab")
        sluice("token", "revoke", "--file", tokens, "--name", "first")
        # Whoever connects is shown the new certificate, soon.
        port = int(cluster.metrics_url.split(":")[2].split("/")[0])
        was = ssl.PEM_cert_to_DER_cert(old)
        wait_for(lambda: ssl.PEM_cert_to_DER_cert(ssl.get_server_certificate(("127.0.0.1", port))) != was, "the new certificate")
        end = wait_for(lambda: (s := state(second))["status"] == "completed" and s, "the job's end")
        assert end["request_counts"]["completed"] == 400 and end["request_counts"]["failed"] == 0, end


def test_a_worker_without_the_clusters_credential_does_not_join(directory):
    secret = os.path.join(directory, "cluster-token")
    wrong = os.path.join(directory, "wrong-token")
    for file, text in ((secret, "a" * 32), (wrong, "b" * 32)):
        with open(file, "w") as f:
            f.write(text)
    with Cluster(MODEL, workers=1, worker_flags=["--cluster-token-file", secret],
                 coordinator_flags=["--cluster-token-file", secret]) as cluster:
        cluster.worker_flags = []
        for name, flags in (("nobody", ()), ("stranger", ("--cluster-token-file", wrong))):
            cluster.start_worker(name, *flags)
            wait_for(lambda: "--cluster-token-file" in cluster.workers[name].log(),
                     f"{name} to say why it can't join")
        state = json.loads(cluster.sluice("cluster", "--json").stdout)
        assert [w["name"] for w in state["workers"]] == ["worker-0"], state


def test_logs_are_json_and_hold_no_secret(directory):
    secret = os.path.join(directory, "cluster-token")
    with open(secret, "w") as f:
        f.write("0123456789abcdef0123456789abcdef\n")
    tokens = os.path.join(directory, "tokens.json")
    user = make_token(tokens, "user")
    path = os.path.join(directory, "in.jsonl")
    write_lines(path, ['{"prompt": "an unmistakable prompt", "max_tokens": 2}', "no JSON but secret"])
    flags = ["--cluster-token-file", secret, "--log-format", "json", "--log-level", "debug"]
    with Cluster(MODEL, workers=1, worker_flags=flags,
                 coordinator_flags=[*flags, "--tokens", tokens]) as cluster:
        job = json.loads(with_token(user, lambda: cluster.sluice("submit", "-i", path, "-w", "--json")).stdout)["id"]
        assert with_token("stranger" * 4, lambda: cluster.sluice("list", check=False)).returncode != 0
        refused = cluster.sluice("--log-format", "json", "list", check=False)
        assert json.loads(refused.stderr)["severity"] == "error", refused.stderr
        assert "a token is needed" in json.loads(refused.stderr)["message"], refused.stderr
        logs = {process.name: process.log_path for process in (cluster.coordinator, *cluster.workers.values())}
        for process in cluster.workers.values():
            process.close()
        cluster.coordinator.close()
        for name, file in logs.items():
            with open(file) as f:
                text = f.read()
            for word in (user, "0123456789abcdef", "strangerstranger", "unmistakable", "but secret"):
                assert word not in text, (name, word)
            lines = [json.loads(line) for line in text.splitlines()]
            assert lines and all({"time", "severity", "thread", "component", "message"} <= set(line) for line in lines)
            if name == "coordinator":
                assert {line["component"] for line in lines} == {"sluice-coordinator"}
                assert any(line.get("job") == job and "accepted" in line["message"] for line in lines), lines
                assert any(line.get("worker") == "worker-0" and "registered" in line["message"] for line in lines), lines
                assert any("epoch" in line and "plan made" in line["message"] for line in lines), lines
            else:
                assert {line["component"] for line in lines} == {"sluice-worker"}
                # The line that says how it was started comes before its name is known.
                assert {line.get("worker") for line in lines[1:]} == {"worker-0"}, lines
                assert any("epoch" in line and "loading" in line["message"] for line in lines), lines


def test_what_is_wrong_with_the_flags_is_said(directory):
    for program in ("sluice", "sluice-coordinator", "sluice-worker"):
        wrong = subprocess.run([os.path.join(BIN, program), "--log-format", "xml",
                                *(["list"] if program == "sluice" else ["--model", MODEL]),
                                *(["--state-dir", directory] if "coord" in program else [])],
                               capture_output=True, text=True, timeout=120)
        assert wrong.returncode == 2 and '"xml" is none of text, json' in wrong.stderr, wrong

    authority, machine, other = make_certificates(directory, "machine", "other")
    short = os.path.join(directory, "short")
    with open(short, "w") as f:
        f.write("abc\n")

    def coordinator(*flags):
        done = subprocess.run(
            [os.path.join(BIN, "sluice-coordinator"), "--model", MODEL, "--state-dir",
             os.path.join(directory, "state"), "--port", "0", "--metrics-port", "0", *flags],
            capture_output=True, text=True, timeout=120)
        assert done.returncode == 2, done
        return done.stderr

    def worker(*flags):
        done = subprocess.run(
            [os.path.join(BIN, "sluice-worker"), "--model", MODEL, "--port", "0",
             "--metrics-port", "0", "--no-profile", *flags],
            capture_output=True, text=True, timeout=120)
        assert done.returncode == 2, done
        return done.stderr

    assert "not the key" in coordinator("--tls-cert", f"{machine}.pem",
                                        "--tls-key", f"{other}.key")
    assert "needs --tls-cert" in coordinator("--tls-ca", f"{authority}.pem")
    assert "--cluster-token-file" in coordinator("--tokens", "tokens.json")
    assert "16 characters" in coordinator("--cluster-token-file", short)
    tls = tls_flags(authority, machine)
    assert "in the clear" in worker(*tls, "--link", "tcp")
    assert "--allow-clear-nccl" in worker(*tls, "--link", "nccl")
    assert "/nowhere" in worker("--tls-ca", "/nowhere")


harness.give_directories(globals())

if __name__ == "__main__":
    run_tests(sys.modules[__name__])
