"""Machines of a chosen size on this one, and clusters of them.

A SmallMachine is a control group of our own (cgroups v1: memory, cores, disk) and, if asked, a
network namespace on a bridge of our own, whose link may have a rate. Needs root. What is made
here is removed again; nothing else is touched.
"""

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

GROUPS = "/sys/fs/cgroup"
BRIDGE_NET = "10.77"


def ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True)


def disk_device(path):
    """The number ("8:0") of the whole disk that a path is on."""
    dev = os.stat(path).st_dev
    sys_path = os.path.realpath(f"/sys/dev/block/{os.major(dev)}:{os.minor(dev)}")
    if os.path.exists(os.path.join(sys_path, "partition")):
        sys_path = os.path.dirname(sys_path)
    with open(os.path.join(sys_path, "dev")) as f:
        return f.read().strip()


class Network:
    """A bridge with this machine at its first address; machines are added to it."""

    def __init__(self):
        self.tag = f"{os.getpid() % 100000}"
        self.bridge = f"slb{self.tag}"
        self.net = f"{BRIDGE_NET}.{os.getpid() % 200 + 10}"
        self.address = f"{self.net}.1"
        self.count = 0

    def __enter__(self):
        ip("link", "add", self.bridge, "type", "bridge")
        ip("address", "add", f"{self.address}/24", "dev", self.bridge)
        ip("link", "set", self.bridge, "up")
        return self

    def __exit__(self, *_):
        ip("link", "del", self.bridge)


class SmallMachine:
    """A share of this machine: `cores` (a cpuset, as "0" or "0-1"), `share` of their time,
    `memory` and disk rates in bytes (a second), a network namespace if `network` is given."""

    def __init__(self, name, *, cores=None, share=1.0, memory=None, disk=None, network=None,
                 link_bits=None):
        self.name, self.cores, self.share, self.memory = name, cores, share, memory
        self.disk, self.network, self.link_bits = disk, network, link_bits
        self.kinds = [kind for kind, used in (("cpuset", cores is not None),
                                              ("cpu", share != 1.0), ("memory", memory),
                                              ("blkio", disk is not None)) if used]
        self.group = f"sluice-bench-{os.getpid()}-{name}"  # a child has another number
        self.address = None

    def path(self, kind):
        return f"{GROUPS}/{kind}/{self.group}"

    def __enter__(self):
        with contextlib.ExitStack() as made:
            for kind in self.kinds:
                os.mkdir(self.path(kind))
                made.callback(self.remove, kind)
            if self.cores is not None:
                self.write("cpuset", "cpuset.cpus", self.cores)
                self.write("cpuset", "cpuset.mems", 0)
            if self.share != 1.0:
                # In shorter periods the kernel's tick lets it have more than that.
                self.write("cpu", "cpu.cfs_period_us", 100000)
                self.write("cpu", "cpu.cfs_quota_us", int(100000 * self.share))
            if self.memory:
                self.write("memory", "memory.limit_in_bytes", self.memory)
            if self.disk:
                self.throttle(*self.disk)
            if self.network is not None:
                self.join(made)
            self.made = made.pop_all()
        return self

    def join(self, made):
        """Puts the machine on the network."""
        net = self.network
        net.count += 1
        self.space = f"sl{net.tag}-{net.count}"
        ours, theirs = f"slo{net.tag}{net.count}", f"slt{net.tag}{net.count}"
        self.address = f"{net.net}.{net.count + 1}"
        ip("netns", "add", self.space)
        made.callback(ip, "netns", "del", self.space)
        ip("link", "add", ours, "type", "veth", "peer", "name", theirs)
        made.callback(ip, "link", "del", ours)  # at once, where a namespace goes later
        ip("link", "set", ours, "master", net.bridge, "up")
        ip("link", "set", theirs, "netns", self.space)
        ip("-n", self.space, "address", "add", f"{self.address}/24", "dev", theirs)
        ip("-n", self.space, "link", "set", theirs, "up")
        ip("-n", self.space, "link", "set", "lo", "up")
        if self.link_bits:
            rate = ["root", "tbf", "rate", str(int(self.link_bits)), "burst", "1mbit", "latency",
                    "50ms"]
            subprocess.run(["tc", "-n", self.space, "qdisc", "add", "dev", theirs, *rate], check=True)
            subprocess.run(["tc", "qdisc", "add", "dev", ours, *rate], check=True)

    def write(self, kind, name, value):
        with open(os.path.join(self.path(kind), name), "w") as f:
            f.write(str(value))

    def read(self, kind, name):
        with open(os.path.join(self.path(kind), name)) as f:
            return int(f.read())

    def throttle(self, read, write, path="/var/tmp"):
        for kind, rate in (("read", read), ("write", write)):
            self.write("blkio", f"blkio.throttle.{kind}_bps_device", f"{disk_device(path)} {int(rate)}")

    def peak_memory(self):
        """The most bytes of memory that its processes had, without what the kernel could take back."""
        return self.read("memory", "memory.max_usage_in_bytes")

    def enter(self):
        """Puts the calling process into the groups: for preexec_fn."""
        for kind in self.kinds:
            self.write(kind, "cgroup.procs", os.getpid())

    def command(self, words):
        """The command line that runs `words` in the machine's network; it still sees its groups'
        limits below /sys, which `ip netns exec` hides."""
        if self.network is None:
            return words
        return ["nsenter", f"--net=/run/netns/{self.space}", *words]

    def remove(self, kind):
        for _ in range(50):
            try:
                os.rmdir(self.path(kind))
                return
            except OSError:
                time.sleep(0.1)

    def __exit__(self, *_):
        self.made.close()


class Cluster:
    """A coordinator that plans, and workers: (name, flags, SmallMachine or None)."""

    def __init__(self, bin_dir, scratch, model, workers, *flags, host="127.0.0.1"):
        self.bin, self.scratch, self.model = bin_dir, scratch, model
        self.workers, self.flags, self.host = workers, flags, host
        self.started, self.metrics = [], []

    def __enter__(self):
        self.state = tempfile.mkdtemp(dir=self.scratch)
        program = os.path.join(self.bin, "sluice-")
        try:
            self.address = self.start([
                program + "coordinator", "--model", self.model, "--state-dir",
                os.path.join(self.state, "state"), "--host", self.host, "--insecure-listen", "--port", "0",
                "--min-workers", str(len(self.workers)), "--load-format", "dummy",
                *self.flags]).split()[2].rstrip(",")
            for name, flags, machine in self.workers:
                self.start([program + "worker", "--model", self.model, "--coordinator",
                            self.address, "--name", name, "--load-format", "dummy", *flags],
                           machine)
        except BaseException:
            self.__exit__()
            raise
        return self

    def start(self, command, machine=None):
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        at = "127.0.0.1" if machine is None or machine.address is None else machine.address
        if at != "127.0.0.1":
            command = [*command, "--host", at, "--insecure-listen"]
        log = os.path.join(self.state, f"log-{len(self.started)}")
        command = [*command, "--metrics-port", str(port)]
        if machine is not None:
            command = machine.command(command)
        with open(log, "w") as f:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=f, text=True,
                                       preexec_fn=machine.enter if machine else None)
        self.started.append(process)
        self.metrics.append(f"{at}:{port}" if self.started[1:] else f"{self.host}:{port}")
        line = process.stdout.readline()
        if not line:
            with open(log) as f:
                sys.exit(f"{' '.join(command)} did not start:\n{f.read()}")
        return line

    def log(self, number):
        with open(os.path.join(self.state, f"log-{number}")) as f:
            return f.read()

    def client(self, *command):
        done = subprocess.run([os.path.join(self.bin, "sluice"), "--coordinator", self.address,
                               *command], capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"sluice {' '.join(command)} ended with {done.returncode}:\n{done.stderr}")
        return done.stdout

    def submit(self, path):
        return json.loads(self.client("submit", "-i", path, "--json"))["id"]

    def status(self, job):
        return json.loads(self.client("status", job, "--json"))

    def cluster(self):
        return json.loads(self.client("cluster", "--json"))

    def answers(self, job):
        return [json.loads(line)["response"]["body"]["choices"]
                for line in self.client("results", job).splitlines()]

    def metric(self, worker, name):
        """The sum over all labels; worker -1: the coordinator's."""
        with urllib.request.urlopen(f"http://{self.metrics[worker + 1]}/metrics") as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.split()[-1]) for line in lines
                   if line.startswith((name + " ", name + "{")))

    def __exit__(self, *_):
        for process in reversed(self.started):
            process.terminate()
            process.wait()
