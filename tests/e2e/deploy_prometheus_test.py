"""What deploy/prometheus and deploy/grafana hold, by Debian's Prometheus: it finds a running cluster by /sd, every query of
the dashboard has data, and alerts fire when what they tell of happens."""

import json
import os
import re
import signal
import sys
import urllib.parse
import urllib.request

import deploy_support as support
import harness
import plan_test

LLAMA = os.path.join(harness.MODELS, "llama-kjv")
FILES = os.path.join(support.DEPLOY, "prometheus")
DASHBOARD = os.path.join(support.DEPLOY, "grafana", "dashboards", "sluice.json")
PROVOKED = ("SluiceWorkerLost", "SluiceJobStalled", "SluiceCoordinatorDown")


def fetch(url):
    with urllib.request.urlopen(url, timeout=10) as answer:
        return answer.read().decode()


class Prometheus:
    """Debian's Prometheus with the shipped files, but for addresses, and for times that a test can wait for."""

    def __init__(self, directory, coordinator):
        self.port = harness.free_port()
        for name in ("rules.yml", "alerts.yml", "prometheus.yml"):
            with open(os.path.join(FILES, name)) as f:
                text = f.read()
            text = text.replace("127.0.0.1:7071", coordinator)
            text = re.sub(r"(_interval|refresh_interval): \d+s", r"\1: 1s", text)
            text = re.sub(r"\bfor: \w+", "for: 0s", text)
            text = re.sub(r"\[(5|10|15)m\]", "[20s]", text)
            assert coordinator in text or name != "prometheus.yml"
            with open(os.path.join(directory, name), "w") as f:
                f.write(text)
        config = os.path.join(directory, "prometheus.yml")
        support.command("promtool", "check", "config", config)
        self.process = harness.Process(directory, "prometheus", [
            "prometheus", f"--config.file={config}", f"--storage.tsdb.path={directory}/data",
            f"--web.listen-address=127.0.0.1:{self.port}"])

    def __enter__(self):
        return self

    def __exit__(self, exc_type, *_):
        if exc_type is not None:
            print(self.process.log())
        if self.process.popen.poll() is None:
            self.process.popen.send_signal(signal.SIGTERM)
            self.process.popen.wait()

    def ask(self, path, **query):
        return json.loads(fetch(f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(query)}"))["data"]

    def healthy_targets(self):
        try:
            active = self.ask("targets")["activeTargets"]
        except OSError:
            return {}
        return {t["scrapeUrl"]: t["discoveredLabels"] for t in active if t["health"] == "up"}

    def value(self, expression):
        return self.ask("query", query=expression)["result"]

    def firing(self):
        """The alerts of what this test does that fire: {(name, worker)}."""
        return {(a["labels"]["alertname"], a["labels"].get("worker")) for a in self.ask("alerts")["alerts"]
                if a["state"] == "firing" and a["labels"]["alertname"] in PROVOKED}


def dashboard_queries():
    with open(DASHBOARD) as f:
        dashboard = json.load(f)
    for panel in dashboard["panels"]:
        for target in panel.get("targets", []):
            yield panel["title"], re.sub(r"\$(coordinator|worker)\b", ".*", target["expr"])


def check_dashboard(prometheus):
    """Waits until every query of the dashboard has had data, which some have only while a job runs."""
    waiting = dict.fromkeys(dashboard_queries())

    def all_had_data():
        for title, query in [*waiting]:
            if prometheus.value(query):
                del waiting[title, query]
        return not waiting
    try:
        harness.wait_for(all_had_data, "data for each query", 90)
    except AssertionError:
        raise AssertionError(f"no data: {[*waiting]}") from None


def test_the_files_are_valid_and_alerts_fire_on_their_series():
    support.need("promtool")
    paths = [os.path.join(FILES, name) for name in ("rules.yml", "alerts.yml")]
    support.command("promtool", "check", "rules", *paths)
    support.command("promtool", "test", "rules", os.path.join(FILES, "alerts_test.yml"))
    with open(paths[1]) as f:
        alerts = re.findall(r"- alert: (\w+)", f.read())
    with open(os.path.join(FILES, "alerts_test.yml")) as f:
        tested = set(re.findall(r"alertname: (\w+)\n +exp_alerts:\n", f.read()))
    assert tested == set(alerts), (tested, alerts)
    with open(os.path.join(support.DEPLOY, "prometheus.md")) as f:
        page = f.read()
    assert [a for a in alerts if f"`{a}`" not in page] == []


def test_prometheus_watches_a_cluster():
    support.need("prometheus", "promtool")
    with plan_test.Files() as files, harness.Cluster(
            LLAMA, workers=2, coordinator_flags=["--dtype", "float32", "--replicas", "1"],
            worker_flags=("--profile", files.profile, "--disk-dir", files.path("disk"))) as cluster:
        coordinator = urllib.parse.urlparse(cluster.metrics_url).netloc
        urls = {cluster.metrics_url, *(w.metrics_url for w in cluster.workers.values())}
        with Prometheus(files.directory.name, coordinator) as prometheus:
            targets = harness.wait_for(lambda: urls <= (t := prometheus.healthy_targets()).keys() and t,
                                       "Prometheus to find all targets")
            assert {t.get("__meta_sluice_worker") for t in targets.values()} == {None, "worker-0", "worker-1"}, targets
            for url in urls:
                assert "error" not in support.command("bash", "-c", "promtool check metrics <<<\"$1\"", "bash", fetch(url))
            harness.write_lines(files.input, [
                json.dumps({"prompt": f"Behold {i}", "max_tokens": 400, "ignore_eos": True}) for i in range(2000)])
            job = cluster.submit(files.input)["id"]
            check_dashboard(prometheus)
            cluster.workers["worker-1"].kill9()
            harness.wait_for(lambda: {("SluiceWorkerLost", "worker-1"), ("SluiceJobStalled", None)} <=
                             prometheus.firing(), "the alerts of a lost worker and a stalled job")
            cluster.start_worker("worker-1")
            harness.wait_for(lambda: not prometheus.firing(), "the alerts to end", 120)
            cluster.sluice("cancel", job)
            cluster.wait_for_end(job)
            cluster.coordinator.kill9()
            harness.wait_for(lambda: ("SluiceCoordinatorDown", None) in prometheus.firing(),
                             "the alert of a lost coordinator")
            cluster.start_coordinator()


if __name__ == "__main__":
    harness.run_tests(sys.modules[__name__])
