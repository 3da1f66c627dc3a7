"""deploy/ssh/up.sh, on three bare Debian 12s with a sshd each, in network namespaces of their own: it starts what does not run,
a job gets the answers of `sluice run`, and all ends again."""

import json
import os
import re
import subprocess
import sys

import deploy_support as support
import harness

LLAMA = os.path.join(harness.MODELS, "llama-kjv")
UP = os.path.join(support.DEPLOY, "ssh", "up.sh")
MACHINES = 3

MACHINE = r"""
set -eu
cd "$1"
mkdir -p upper work root
mount -t overlay overlay -o "lowerdir=$2,upperdir=upper,workdir=work" root
mount -t proc proc root/proc
mount --rbind /dev root/dev
mount -t tmpfs tmpfs root/run
mkdir -p root/run/sshd root/models/llama-kjv
mkdir -p -m 700 root/root/.ssh
cp ../key.pub root/root/.ssh/authorized_keys
[ -z "$3" ] || cp -r "$3"/. root/models/llama-kjv
ip link set lo up
exec chroot root /usr/sbin/sshd -D -e
"""


class Machines:
    """Some machines that only a namespace of the test's own reaches. Use as a context manager; needs root."""

    def __init__(self, directory, base):
        self.directory, self.base = directory, base
        self.names = [f"sluice-{os.getpid()}-{i}" for i in range(MACHINES + 1)]  # the first is the client's
        self.addresses = [f"10.77.0.{i + 1}" for i in range(1, MACHINES + 1)]
        self.processes = []

    def __enter__(self):
        try:
            self._network()
            key = os.path.join(self.directory, "key")
            support.command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key)
            for i in range(MACHINES):
                folder = os.path.join(self.directory, f"machine-{i}")
                os.mkdir(folder)
                self.processes.append(harness.Process(self.directory, f"sshd-{i}", [
                    "ip", "netns", "exec", self.names[i + 1], "unshare", "--mount", "--pid", "--uts", "--fork", "--kill-child",
                    "sh", "-c", MACHINE, "sh", folder, self.base, LLAMA if i == 0 else ""]))
            self.ssh = ("ssh -F /dev/null -o BatchMode=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null "
                        f"-o LogLevel=ERROR -i {key}")
            for i in range(MACHINES):
                harness.wait_for(lambda: self.on(i, "true", check=False).returncode == 0, f"the sshd of machine {i}")
        except BaseException as error:
            self.__exit__(type(error))
            raise
        return self

    def __exit__(self, failed, *_):
        for process in self.processes:
            if failed:
                print(f"--- {process.name}\n{process.log()[-1000:]}")
            process.kill9()
        for name in self.names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)

    def _network(self):
        for name in self.names:
            support.command("ip", "netns", "add", name)
        client = self.names[0]
        support.command("ip", "-n", client, "link", "add", "bridge", "type", "bridge")
        for command in ("link set lo up", "link set bridge up", "address add 10.77.0.1/24 dev bridge"):
            support.command("ip", "-n", client, *command.split())
        for name, address in zip(self.names[1:], self.addresses):
            port = f"port-{address.rsplit('.', 1)[1]}"
            support.command("ip", "-n", client, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", name)
            support.command("ip", "-n", client, "link", "set", port, "master", "bridge", "up")
            support.command("ip", "-n", name, "address", "add", f"{address}/24", "dev", "eth0")
            support.command("ip", "-n", name, "link", "set", "eth0", "up")

    def here(self, *args, check=True):
        """Runs a command in the client's namespace; returns what subprocess.run does."""
        done = subprocess.run(["ip", "netns", "exec", self.names[0], *args], capture_output=True, text=True, timeout=300,
                              stdin=subprocess.DEVNULL, env={**os.environ, "SLUICE_SSH": self.ssh})
        if check and done.returncode != 0:
            raise AssertionError(f"{' '.join(args)} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
        return done

    def on(self, i, script, check=True):
        return self.here(*self.ssh.split(), f"root@{self.addresses[i]}", script, check=check)


def test_machines_are_brought_up_and_taken_down(directory):
    support.need("debootstrap", "ssh", "unshare")
    base = support.kept_debian("bookworm", ("openssh-server",))
    archive = support.packed("archive")
    with Machines(directory, base) as machines:
        hosts = os.path.join(directory, "hosts.txt")
        with open(hosts, "w") as f:
            f.write("# ssh's name, address, flags\n")
            for i, address in enumerate(machines.addresses):
                f.write(f"root@{address} {address if i else ''} --no-profile --threads 1 --host-memory 256MiB\n")

        def up(*args, check=True):
            return machines.here(UP, hosts, *args, check=check)
        start = ("--archive", archive, "--model", "/models/llama-kjv", "--plan", "off")
        said = up(*start).stdout
        assert said.count("copying") == MACHINES and "3 workers are there" in said, said
        assert os.stat(f"{hosts}.token").st_mode & 0o077 == 0
        # The command that it names, with the answers of one machine.
        lines = harness.mixed_requests(12)
        source, target = (os.path.join(directory, name) for name in ("in.jsonl", "out.jsonl"))
        harness.write_lines(source, lines)
        submit, = re.findall(r"(?m)^  (sluice .*)$", said)
        submit = submit.replace("sluice", os.path.join(harness.BIN, "sluice"), 1).replace("prompts.jsonl", source)
        machines.here(*submit.replace("answers.jsonl", target).split())
        with open(target) as f:
            got = harness.answers([json.loads(line) for line in f])
        assert got == harness.answers(harness.run(LLAMA, lines)[1]), "other answers than those of `sluice run`"
        # Who has no token is refused.
        refused = machines.here(os.path.join(harness.BIN, "sluice"), "--coordinator", f"{machines.addresses[0]}:7070", "list",
                                check=False)
        assert refused.returncode != 0 and "token" in refused.stderr, refused
        # What runs goes on; what does not is started.
        machines.on(1, "kill -9 $(cat sluice-cluster/run/worker.pid)")
        said = up("--status").stdout
        assert f"root@{machines.addresses[1]}: worker does not run" in said and said.count("worker runs") == 2, said
        said = up(*start).stdout
        assert said.count("runs already") == MACHINES and said.count("worker started") == 1 and "copying" not in said, said
        said = up("--stop").stdout
        assert said.count("worker ended") == MACHINES and said.count("coordinator ended") == 1, said
        assert "killed" not in said, said
        assert up("--stop").stdout == ""
        machines.on(0, "test -e sluice-cluster/state/sluice.db")
        # What does not start says why.
        failed = up("--archive", archive, "--model", "/models/none", check=False)
        assert failed.returncode != 0 and "/models/none" in failed.stdout + failed.stderr, failed
        up("--purge")
        for i in range(MACHINES):
            machines.on(i, "test ! -e sluice-cluster")


def test_a_wrong_list_or_flag_is_refused(directory):
    hosts = os.path.join(directory, "hosts.txt")

    def refused(text, *args):
        with open(hosts, "w") as f:
            f.write(text)
        done = subprocess.run([UP, hosts, *args], capture_output=True, text=True, env={**os.environ, "SLUICE_SSH": "false"})
        return done.returncode, done.stderr.strip()
    assert refused("one\n-oProxyCommand=x\n") == (
        2, f"up.sh: {hosts}, line 2: -oProxyCommand=x is no machine that ssh could reach; write [USER@]HOST")
    assert refused("one 10.0.0.1;x\n") == (2, f"up.sh: {hosts}, line 1: 10.0.0.1;x is no host name or IPv4 address")
    assert refused("one 10.0.0.1 two\n") == (2, f"up.sh: {hosts}, line 1: two is no flag; see sluice-worker --help")
    assert refused("one\n# and\none\n") == (2, f"up.sh: {hosts}, line 3: one is there twice")
    assert refused("# none\n") == (2, f"up.sh: {hosts} names no machine")
    assert refused("one\n")[0] == 2 and "--archive is missing" in refused("one\n")[1]
    assert refused("one\n", "--archive", "/none")[1] == (
        "up.sh: --archive: there is no file /none; deploy/archive/build.sh makes one of a build")
    assert "--model is missing" in refused("one\n", "--archive", UP)[1]
    code, said = refused("one\n", "--archive", UP, "--model", "/m")
    assert code == 1 and said.endswith("not every machine could be reached and given the programs"), said
    done = subprocess.run([UP, "/none/hosts.txt"], capture_output=True, text=True)
    assert done.returncode == 2 and "there is no file /none/hosts.txt" in done.stderr, done


if __name__ == "__main__":
    harness.give_directories(globals())
    harness.run_tests(sys.modules[__name__])
