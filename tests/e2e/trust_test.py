"""TLS, tokens and the cluster's credential, with the real programs."""

import json
import os
import ssl
import subprocess
import sys
import urllib.request

import harness
from harness import (BIN, MODELS, Cluster, Trust, answers, mixed_requests, run_tests, sluice,
                     wait_for, write_lines)

MODEL = os.path.join(MODELS, "llama-kjv")


def get(url, context=None, token=None):
    request = urllib.request.Request(url)
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    with urllib.request.urlopen(request, context=context, timeout=60) as answer:
        return answer.read().decode()


def test_a_whole_cluster_speaks_mutual_tls_and_asks_for_tokens(directory):
    trust = Trust(directory)
    user = trust.make_token("user", "--tenant", "lab")
    other = trust.make_token("other", "--tenant", "shop")
    requests = mixed_requests(12)
    path = os.path.join(directory, "in.jsonl")
    write_lines(path, requests)
    # What the same cluster answers in the clear.
    with Cluster(MODEL, workers=2) as plain:
        job = plain.submit(path)["id"]
        plain.wait_for_end(job)
        expected = answers(plain.results(job))

    audit = os.path.join(directory, "audit.jsonl")
    with Cluster(MODEL, workers=2, trust=trust, coordinator_flags=["--audit-log", audit]) as cluster:
        refused = cluster.sluice("list", check=False)
        assert refused.returncode == 1 and "a token is needed" in refused.stderr, refused.stderr
        clear = sluice("--coordinator", f"127.0.0.1:{cluster.port}", "list", check=False, token=user)
        assert clear.returncode == 4, clear

        job = json.loads(cluster.sluice("submit", "-i", path, "--json", token=user).stdout)["id"]
        cluster.sluice("watch", job, token=user)
        lines = cluster.sluice("results", job, token=user).stdout.splitlines()
        assert answers([json.loads(line) for line in lines]) == expected

        hidden = cluster.sluice("status", job, check=False, token=other)
        assert hidden.returncode == 2 and f"no job {job}" in hidden.stderr, hidden.stderr

        sluice("token", "revoke", "--file", trust.tokens, "--name", "user")
        revoked = cluster.sluice("status", job, check=False, token=user)
        assert "revoked" in revoked.stderr, revoked.stderr

        # The metrics are behind the same TLS.
        context = ssl.create_default_context(cafile=trust.path("ca.pem"))
        context.load_cert_chain(trust.path("machine.pem"), trust.path("machine.key"))
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
    trust = Trust(directory)
    first = trust.make_token("first", "--tenant", "lab")
    path = os.path.join(directory, "in.jsonl")
    write_lines(path, mixed_requests(400))
    with Cluster(MODEL, workers=2, trust=trust, coordinator_flags=["--plan", "off", "--gbs", "2"]) as cluster:
        job = json.loads(cluster.sluice("submit", "-i", path, "--json", token=first).stdout)["id"]
        state = lambda token: json.loads(cluster.sluice("status", job, "--json", token=token).stdout)
        wait_for(lambda: state(first)["request_counts"]["completed"] > 0, "the first answer")
        with open(trust.path("machine.pem")) as f:
            old = f.read()
        trust.make_certificates("machine")
        with open(trust.path("machine.pem")) as f:
            assert f.read() != old
        second = trust.make_token("second", "--tenant", "lab")
        sluice("token", "revoke", "--file", trust.tokens, "--name", "first")
        # Whoever connects is shown the new certificate, soon.
        port = int(cluster.metrics_url.split(":")[2].split("/")[0])
        was = ssl.PEM_cert_to_DER_cert(old)
        wait_for(lambda: ssl.PEM_cert_to_DER_cert(ssl.get_server_certificate(("127.0.0.1", port))) != was, "the new certificate")
        end = wait_for(lambda: (s := state(second))["status"] == "completed" and s, "the job's end")
        assert end["request_counts"]["completed"] == 400 and end["request_counts"]["failed"] == 0, end


def test_a_worker_without_the_clusters_credential_does_not_join(directory):
    wrong = os.path.join(directory, "wrong-token")
    with open(wrong, "w") as f:
        f.write("b" * 32)
    secret = Trust(directory).secret
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
    trust = Trust(directory)
    user = trust.make_token("user")
    path = os.path.join(directory, "in.jsonl")
    write_lines(path, ['{"prompt": "an unmistakable prompt", "max_tokens": 2}', "no JSON but secret"])
    flags = ["--cluster-token-file", trust.secret, "--log-format", "json", "--log-level", "debug"]
    with Cluster(MODEL, workers=1, worker_flags=flags,
                 coordinator_flags=[*flags, "--tokens", trust.tokens]) as cluster:
        job = json.loads(cluster.sluice("submit", "-i", path, "-w", "--json", token=user).stdout)["id"]
        assert cluster.sluice("list", check=False, token="stranger" * 4).returncode != 0
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

    trust = Trust(directory, "machine", "other")
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

    assert "not the key" in coordinator("--tls-cert", trust.path("machine.pem"), "--tls-key", trust.path("other.key"))
    assert "needs --tls-cert" in coordinator("--tls-ca", trust.path("ca.pem"))
    assert "--cluster-token-file" in coordinator("--tokens", "tokens.json")
    assert "16 characters" in coordinator("--cluster-token-file", short)
    tls = trust.client_flags()
    assert "in the clear" in worker(*tls, "--link", "tcp")
    assert "--allow-clear-nccl" in worker(*tls, "--link", "nccl")
    assert "/nowhere" in worker("--tls-ca", "/nowhere")

    # What others can reach wants both certificates and tokens, or a word that it does without.
    server, client = tls[2:], ["--tls-ca", trust.path("ca.pem")]
    secret, tokens = ["--cluster-token-file", trust.secret], ["--tokens", trust.tokens]
    trust.make_token("user")
    for host, flags in (("0.0.0.0", []), ("::", ["--check-config"]), ("[::]", secret), ("10.77.77.77", server)):
        for program in (coordinator, worker):
            said = program("--host", host, *flags)
            assert f"--host {host} would be open to others" in said and "--insecure-listen" in said, said
    assert "--tls-cert, --tls-key and --tokens" in coordinator("--host", "0.0.0.0", *secret, *tokens)
    assert "--cluster-token-file" in worker("--host", "0.0.0.0", "--all")
    for program, more in (("sluice-coordinator", ["--state-dir", os.path.join(directory, "state")]),
                          ("sluice-worker", ["--no-profile"])):
        check = lambda *flags: subprocess.run([os.path.join(BIN, program), "--model", MODEL, *more, "--check-config", *flags],
                                              capture_output=True, text=True, timeout=120)
        kept_out = tokens if "coordinator" in program else []
        for flags in ([*server, *secret, *kept_out], [*server, *client]):
            done = check("--host", "0.0.0.0", *flags)
            assert done.returncode == 0 and "without" not in done.stderr, done
        done = check("--host", "localhost")
        assert done.returncode == 0 and "without" not in done.stderr, done
        done = check("--host", "0.0.0.0", "--insecure-listen")
        assert done.returncode == 0 and "listening on 0.0.0.0 without TLS and authentication" in done.stderr, done


def test_a_tenants_quota_is_kept_told_and_waited_for(directory):
    trust = Trust(directory)
    user = trust.make_token("user", "--tenant", "lab")
    other = trust.make_token("other", "--tenant", "shop")
    quota = lambda *flags, **more: sluice("token", "quota", "--file", trust.tokens, "--tenant", "lab", *flags, **more)
    quota("--queued-requests", "7", "--queued-bytes", "1GiB")
    quota("--queued-requests", "20")  # the other limit stays
    refused = quota(check=False)
    assert refused.returncode == 2 and "or --none" in refused.stderr, refused
    listed = sluice("token", "list", "--file", trust.tokens).stdout
    assert [line.split() for line in listed.splitlines()[-2:]] == [
        ["QUOTA", "OF", "TENANT", "REQUESTS", "TOKENS", "BYTES"], ["lab", "20", "-", str(1 << 30)]], listed
    first, second, huge = (os.path.join(directory, name) for name in ("first.txt", "second.txt", "huge.txt"))
    # No worker is there yet, so that nothing ends.
    write_lines(first, ["In the beginning"] * 15)
    write_lines(second, ["And the earth"] * 10)
    write_lines(huge, ["And the evening"] * 21)
    submit = lambda path, *flags, **more: cluster.sluice("submit", "-i", path, "--max-tokens", "2", "-q",
                                                         "--json", *flags, **{"token": user, **more})
    flags = ["--cluster-token-file", trust.secret]
    with Cluster(MODEL, workers=0, coordinator_flags=[*flags, "--tokens", trust.tokens], worker_flags=flags) as cluster:
        submit(first)
        full = submit(second, check=False)
        assert full.returncode == 1 and "is 20 requests queued, and 15 are" in full.stderr, full
        assert "no job was made of it; try again in 5s" in full.stderr, full
        alone = submit(huge, check=False)
        assert alone.returncode == 1 and "this job alone has more" in alone.stderr and "again" not in alone.stderr, alone
        submit(second, token=other)
        assert len(cluster.sluice("list", "--json", token=user).stdout.splitlines()) == 1
        metrics = get(cluster.metrics_url)
        for line in ('sluice_tenant_queued_requests{tenant="lab"} 15', 'sluice_tenant_queued_requests{tenant="shop"} 10',
                     'sluice_tenant_refused_jobs_total{tenant="lab"} 2'):
            assert line in metrics, (line, metrics)
        # With --wait it comes in once there is room, here since the quota grows under a running coordinator.
        waiting = subprocess.Popen(
            [os.path.join(BIN, "sluice"), "--coordinator", f"127.0.0.1:{cluster.port}", "submit", "-i", second,
             "--max-tokens", "2", "-q", "--json", "--wait"], env={**os.environ, "SLUICE_TOKEN": user},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert "waiting, as --wait says" in waiting.stderr.readline()
        cluster.start_worker("worker-0")
        out, error = waiting.communicate(timeout=120 * harness.SLOW)
        assert waiting.returncode == 0 and json.loads(out)["request_counts"]["completed"] == 10, (out, error)
        quota("--none")
        submit(huge)


harness.give_directories(globals())

if __name__ == "__main__":
    run_tests(sys.modules[__name__])
