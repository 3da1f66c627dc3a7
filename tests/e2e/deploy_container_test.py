"""deploy/container: podman builds the image on a bare Debian 12, of an archive of the build, and what compose.yaml says runs of it:
a coordinator and two workers answer a job as `sluice run` does, and end by SIGTERM."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys

import deploy_support as support
import harness

LLAMA = os.path.join(harness.MODELS, "llama-kjv")
CONTAINER = os.path.join(support.DEPLOY, "container")
WORKERS = ("worker-1", "worker-2")
# Podman asks for more than a user without CAP_SYS_RESOURCE may have.
LIMITS = ("--ulimit", "nofile=4096:4096", "--ulimit", "nproc=4096:4096")


class Podman:
    """Podman with a store, and a network of nothing but loopback, of the test's own. Use as a context manager."""

    def __init__(self, directory):
        self.store, self.network = os.path.join(directory, "store"), f"sluice-{os.getpid()}"
        self.flags = ["podman", "--root", self.store, "--runroot", os.path.join(directory, "run"), "--cgroup-manager", "cgroupfs",
                      *(["--runtime", "runc"] if shutil.which("runc", path=os.environ["PATH"] + ":/usr/sbin") else [])]
        for driver in ("overlay", "vfs"):
            done = self("info", flags=("--storage-driver", driver), check=False)
            if done.returncode == 0:
                self.flags += ["--storage-driver", driver]
                break
            shutil.rmtree(self.store, ignore_errors=True)
        else:
            raise harness.Skipped(f"podman has no storage here: {done.stderr[-300:]}")

    def __call__(self, *args, flags=(), check=True, **more):
        done = subprocess.run([*self.flags, *flags, *args], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              timeout=300 * harness.SLOW, **more)
        assert not check or done.returncode == 0, f"podman {' '.join(args)}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done

    def __enter__(self):
        support.command("ip", "netns", "add", self.network)
        support.command("ip", "-n", self.network, "link", "set", "lo", "up")
        return self

    def __exit__(self, error, *_):
        if error is not None:
            for name in ("coordinator", *WORKERS):
                print(f"--- log of {name}\n{self('logs', name, check=False)}")
        with contextlib.suppress(subprocess.TimeoutExpired):
            self("rm", "--all", "--force", "--time", "0", check=False)
            self("rmi", "--all", "--force", check=False)
            self("volume", "prune", "--force", check=False)
        support.command("ip", "netns", "del", self.network)
        # The storage of overlays is a mount.
        subprocess.run(["umount", os.path.join(self.store, "overlay")], stderr=subprocess.DEVNULL)

    def run(self, *args, **more):
        hosts = [f"--add-host={name}:127.0.0.1" for name in ("coordinator", *WORKERS)]
        return self("run", "--network", f"ns:/run/netns/{self.network}", *LIMITS, *hosts, *args, **more)


def build(podman, directory):
    """Builds the image "sluice" as deploy/container.md says; returns what the build said."""
    context = os.path.join(directory, "context")
    shutil.copytree(CONTAINER, os.path.join(context, "deploy/container"))
    archive = support.command(os.path.join(support.DEPLOY, "archive/build.sh"), support.BUILD, directory).split()[-1]
    os.rename(archive, os.path.join(context, "deploy/container/sluice.tar.gz"))
    with subprocess.Popen(["tar", "-C", support.kept_debian(), "-c", "."], stdout=subprocess.PIPE) as tar:
        podman("import", "-", "localhost/debian:12", stdin=tar.stdout)
    return podman("build", "--isolation", "chroot", *LIMITS[:2], "--network", "host",
                  "--build-arg", "BASE=localhost/debian:12", "--build-arg", "PROGRAMS=archive",
                  "-f", os.path.join(context, "deploy/container/Containerfile"), "-t", "sluice", context).stdout


def service(compose, name, values):
    """Returns what `podman run` needs to do as a service of compose.yaml says."""
    def filled(text):
        return re.sub(r"\$\{(\w+)(?::[-?]([^}]*))?\}", lambda m: values.get(m[1], m[2]), str(text)).replace("$$", "$")
    said = compose["services"][name]
    known = {"image", "command", "environment", "ports", "volumes", "healthcheck", "read_only", "tmpfs", "cap_drop",
             "security_opt", "restart", "stop_grace_period", "deploy"}
    assert set(said) <= known, set(said) - known
    flags = [f"--env={k}={filled(v)}" for k, v in said["environment"].items()]
    flags += [f"--volume={filled(v)}" for v in said["volumes"]]
    flags += ["--read-only"] * said["read_only"] + [f"--tmpfs={path}" for path in said["tmpfs"]]
    flags += [f"--cap-drop={c}" for c in said["cap_drop"]] + [f"--security-opt={o.split(':')[0]}" for o in said["security_opt"]]
    return flags, [filled(said["image"]), *map(filled, said["command"])]


def test_a_coordinator_and_two_workers_of_the_image_answer_a_job(directory):
    import yaml
    support.need("podman", "debootstrap", "ip")
    with open(os.path.join(CONTAINER, "compose.yaml")) as f:
        compose = yaml.safe_load(f)
    lines = harness.mixed_requests(20)
    os.mkdir(os.path.join(directory, "in"))
    harness.write_lines(os.path.join(directory, "in/in.jsonl"), lines)
    with Podman(directory) as podman:
        build(podman, directory)
        able = podman.run("--rm", "sluice", "sluice", "--version", check=False)
        if able.returncode in (125, 126) and "OCI" in able.stderr:
            raise harness.Skipped(f"podman can't run a container here: {able.stderr[-300:]}")
        assert re.match(r"\d+\.\d+\.\d+", able.stdout), able
        values = {"SLUICE_MODEL": LLAMA, "SLUICE_WORKER_HOST_MEMORY": "512MiB", "SLUICE_WORKER_THREADS": "1"}
        flags, command = service(compose, "coordinator", values)
        podman.run("--detach", "--name", "coordinator", *flags, *command)
        flags, command = service(compose, "worker", values)
        for name in WORKERS:  # one network for all: no two have a port in common
            podman.run("--detach", "--name", name, "--hostname", name, *flags, "--env=SLUICE_WORKER_PORT=0",
                       "--env=SLUICE_WORKER_METRICS_PORT=0", "--env=SLUICE_WORKER_NO_PROFILE=1", *command)
        # The health checks of compose.yaml.
        test = compose["services"]["coordinator"]["healthcheck"]["test"]
        assert test[0] == "CMD", test
        harness.wait_for(lambda: podman("exec", "coordinator", *test[1:], check=False).returncode == 0, "a healthy coordinator")
        harness.wait_for(lambda: podman("exec", "coordinator", *test[1:], "/readyz", check=False).returncode == 0, "a plan")
        assert podman("exec", "coordinator", "sluice-healthy", "7079", check=False).returncode != 0
        done = podman.run("--rm", f"--volume={directory}/in:/in:ro", "--env=SLUICE_COORDINATOR=coordinator:7070", "sluice",
                          "sluice", "submit", "-i", "/in/in.jsonl", "--wait", "-o", "-")
        got = harness.answers([json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")])
        assert got == harness.answers(harness.run(LLAMA, lines)[1]), "other answers than those of `sluice run`"
        state = json.loads(podman("exec", "coordinator", "sluice", "cluster", "--json").stdout)
        assert {w["name"] for w in state["workers"] if w["state"] == "ready"} == set(WORKERS), state
        assert podman("exec", "coordinator", "id", "-u").stdout == "10001\n"
        for name in (*WORKERS, "coordinator"):
            podman("stop", "--time", "60", name)
            assert podman("inspect", "--format", "{{.State.ExitCode}}", name).stdout == "0\n", name


if __name__ == "__main__":
    harness.give_directories(globals())
    harness.run_tests(sys.modules[__name__])
