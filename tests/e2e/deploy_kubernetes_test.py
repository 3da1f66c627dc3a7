"""What kustomize makes of deploy/kubernetes: the published schemas allow it, its parts refer to each other rightly, and its flags
and services are those of the programs."""

import json
import os
import re
import subprocess
import sys

import deploy_support as support
import harness

FOLDER = os.path.join(support.DEPLOY, "kubernetes")
PROTO = os.path.join(support.ROOT, "proto", "sluice", "v1")
OVERLAYS = ("cpu", "gpu", "cpu-and-gpu")
DEBIANS_PYTHON = "/usr/bin/python3"
MINE = """
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources: [{kubernetes}/overlays/cpu-and-gpu]
components: [{kubernetes}/token, {kubernetes}/monitoring]
images: [{{ name: sluice, newName: registry.example/sluice, newTag: "0.1.0" }}]
replicas: [{{ name: sluice-worker-cpu, count: 8 }}]
"""


def rendered(overlay):
    """Returns the objects that kustomize makes of a folder."""
    support.need("kubectl")
    text = support.command("kubectl", "kustomize", overlay)
    done = subprocess.run([DEBIANS_PYTHON, "-c", "import json, sys, yaml; print(json.dumps(list(yaml.safe_load_all(sys.stdin))))"],
                          input=text, capture_output=True, text=True)
    if "No module named 'yaml'" in done.stderr:
        raise harness.Skipped("no python3-yaml; deploy/packages.txt names the package")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def overlay_of_ones_own(directory):
    with open(os.path.join(directory, "kustomization.yaml"), "w") as f:
        f.write(MINE.format(kubernetes=os.path.relpath(FOLDER, os.path.realpath(directory))))
    return directory


def flags_of(program):
    """Returns the flags that a program's help names."""
    text = support.command(os.path.join(harness.BIN, program), "--help")
    return set(re.findall(r"(?m)^\s+(?:-\w, )?(--[a-z-]+)", text))


def services_of_protos():
    names = set()
    for name in os.listdir(PROTO):
        if name.endswith(".proto"):
            with open(os.path.join(PROTO, name)) as f:
                names |= {f"sluice.v1.{service}" for service in re.findall(r"(?m)^service (\w+)", f.read())}
    return names


def faults(objects):
    """Returns what is wrong with the objects, a sentence each."""
    found = []
    by_kind = {}
    for o in objects:
        by_kind.setdefault(o["kind"], []).append(o)
    sets = by_kind["StatefulSet"]
    labels = {s["metadata"]["name"]: s["spec"]["template"]["metadata"]["labels"] for s in sets}
    ports = {s["metadata"]["name"]: {p["name"]: p["containerPort"] for p in s["spec"]["template"]["spec"]["containers"][0]["ports"]}
             for s in sets}

    def selected(selector):
        return [name for name, has in labels.items() if all(has.get(k) == v for k, v in selector.items())]

    for s in sets:
        name, spec = s["metadata"]["name"], s["spec"]
        pod = spec["template"]["spec"]
        container, = pod["containers"]
        if selected(spec["selector"]["matchLabels"]) != [name]:
            found.append(f"{name} selects other pods than its own")
        if spec["serviceName"] not in [v["metadata"]["name"] for v in by_kind["Service"]]:
            found.append(f"{name} names no Service of its own")
        volumes = {v["name"] for v in [*pod["volumes"], *(t["metadata"] for t in spec["volumeClaimTemplates"])]}
        mounted = {m["name"] for m in container["volumeMounts"]}
        if volumes != mounted:
            found.append(f"{name} has volumes {volumes}, and mounts {mounted}")
        secured = container["securityContext"]
        if not (pod["securityContext"]["runAsNonRoot"] and secured["readOnlyRootFilesystem"] and
                not secured["allowPrivilegeEscalation"] and secured["capabilities"] == {"drop": ["ALL"]}):
            found.append(f"{name} may do more than it needs")
        program, = container["command"]
        known = flags_of(program)
        prefix = program.upper().replace("-", "_") + "_"
        for flag in container["args"]:
            if flag.split("=")[0] not in known:
                found.append(f"{name}: {program} has no {flag}")
        for variable in container["env"]:
            twin = variable["name"].removeprefix(prefix if variable["name"].startswith(prefix) else "SLUICE_")
            if variable["name"].startswith("SLUICE_") and "--" + twin.lower().replace("_", "-") not in known:
                found.append(f"{name}: {program} has no flag for {variable['name']}")
        for probe in [container[p] for p in container if p.endswith("Probe")]:
            if "grpc" in probe:
                if probe["grpc"]["port"] != ports[name]["grpc"]:
                    found.append(f"{name}: a probe asks port {probe['grpc']['port']}")
                if probe["grpc"].get("service", "") not in {"", *services_of_protos()}:
                    found.append(f"{name}: a probe asks for {probe['grpc']['service']}")
            elif probe["httpGet"]["port"] != "http" or probe["httpGet"]["path"] not in ("/healthz", "/readyz"):
                found.append(f"{name}: a probe asks for {probe['httpGet']}")
        limits = container["resources"]["limits"]
        said = {v["name"]: v.get("value") for v in container["env"]}
        if "SLUICE_WORKER_HOST_MEMORY" in said:
            budget = int(said["SLUICE_WORKER_HOST_MEMORY"].removesuffix("GiB"))
            if budget >= int(limits["memory"].removesuffix("Gi")) or said["SLUICE_WORKER_THREADS"] != limits["cpu"]:
                found.append(f"{name}: memory or threads do not fit its limits")
    for service in by_kind["Service"]:
        name, spec = service["metadata"]["name"], service["spec"]
        chosen = selected(spec["selector"])
        if chosen != [name]:
            found.append(f"Service {name} selects {chosen}")
        for port in spec["ports"]:
            if ports.get(name, {}).get(port["targetPort"]) != port["port"]:
                found.append(f"Service {name}: port {port['port']} is not the container's {port['targetPort']}")
    for budget in by_kind["PodDisruptionBudget"]:
        if selected(budget["spec"]["selector"]["matchLabels"]) != [budget["metadata"]["name"]]:
            found.append(f"PodDisruptionBudget {budget['metadata']['name']} selects others")
    workers = [name for name in labels if name != "sluice-coordinator"]
    for policy in by_kind["NetworkPolicy"]:
        name, spec = policy["metadata"]["name"], policy["spec"]
        chosen = selected(spec["podSelector"]["matchLabels"])
        if chosen != (workers if name == "sluice-worker" else [name]):
            found.append(f"NetworkPolicy {name} selects {chosen}")
        allowed = {p["port"] for rule in spec["ingress"] for p in rule["ports"]}
        if allowed != set(ports[chosen[0]].values()) or not all(rule.get("from") for rule in spec["ingress"]):
            found.append(f"NetworkPolicy {name} lets others in, at {allowed}")
    return found


def test_the_parts_of_each_overlay_fit_together(directory):
    for overlay in OVERLAYS:
        objects = rendered(os.path.join(FOLDER, "overlays", overlay))
        assert not faults(objects), "\n".join([overlay, *faults(objects)])
        assert sum(o["kind"] == "PodDisruptionBudget" for o in objects) == len(overlay.split("-and-"))
    own = rendered(overlay_of_ones_own(directory))
    assert not faults(own), "\n".join(faults(own))
    kinds = [o["kind"] for o in own]
    assert "ServiceMonitor" in kinds, kinds
    workers = next(o for o in own if o["kind"] == "StatefulSet" and o["metadata"]["name"] == "sluice-worker-cpu")
    container, = workers["spec"]["template"]["spec"]["containers"]
    assert workers["spec"]["replicas"] == 8 and container["image"] == "registry.example/sluice:0.1.0", workers
    assert {"name": "SLUICE_CLUSTER_TOKEN_FILE", "value": "/etc/sluice/secret/token"} in container["env"], container


def test_what_does_not_fit_is_found(directory):
    """The check above can fail: each of these changes is one that it has to see."""
    def changed(change):
        objects = rendered(os.path.join(FOLDER, "overlays", "cpu"))
        sets = {o["metadata"]["name"]: o for o in objects if o["kind"] == "StatefulSet"}
        change(sets["sluice-worker-cpu"]["spec"]["template"]["spec"]["containers"][0], objects)
        return faults(objects)
    for word, change in (
            ("has no --wrong", lambda c, _: c["args"].append("--wrong=1")),
            ("no flag for SLUICE_WORKER_WRONG", lambda c, _: c["env"].append({"name": "SLUICE_WORKER_WRONG", "value": "1"})),
            ("a probe asks port 7000", lambda c, _: c["readinessProbe"]["grpc"].update(port=7000)),
            ("a probe asks for sluice.v1.Nothing", lambda c, _: c["readinessProbe"]["grpc"].update(service="sluice.v1.Nothing")),
            ("and mounts", lambda c, _: c["volumeMounts"].pop()),
            ("may do more", lambda c, _: c["securityContext"].update(readOnlyRootFilesystem=False)),
            ("do not fit its limits", lambda c, _: c["resources"]["limits"].update(memory="8Gi")),
            ("selects []", lambda _, o: [s["spec"]["selector"].update(a="b") for s in o if s["kind"] == "Service"]),
            ("lets others in", lambda _, o: [p["spec"]["ingress"][0].pop("from") for p in o if p["kind"] == "NetworkPolicy"])):
        found = changed(change)
        assert any(word in fault for fault in found), (word, found)


def test_the_published_schemas_allow_it(directory):
    validate = support.pip_program("kubernetes-validate", "kubernetes-validate")
    for overlay in (*(os.path.join(FOLDER, "overlays", o) for o in OVERLAYS), overlay_of_ones_own(directory)):
        # The operator's kinds are not Kubernetes' own.
        objects = [o for o in rendered(overlay) if o["kind"] != "ServiceMonitor"]
        path = os.path.join(directory, "objects.yaml")
        with open(path, "w") as f:
            f.write("\n---\n".join(json.dumps(o) for o in objects))
        said = support.command(validate, "--strict", path)
        assert said.count("passed") == len(objects), said
    objects[0]["metadata"]["wrong"] = 1
    with open(path, "w") as f:
        json.dump(objects[0], f)
    said = support.command(validate, "--strict", path, check=False)
    assert "wrong" in said, said


if __name__ == "__main__":
    harness.give_directories(globals())
    harness.run_tests(sys.modules[__name__])
