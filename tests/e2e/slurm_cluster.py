"""A Slurm cluster on loopback: munged, slurmctld and some slurmd, which are this test's own, in a folder of its own."""

import os
import re
import shutil
import subprocess

import harness

CONFIGURATION = """
ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={munge}/socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobAcctGatherType=jobacct_gather/none
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=1,bf_interval=1
KillWait=30
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def program(name):
    return shutil.which(name, path=os.environ["PATH"] + ":/usr/sbin:/sbin")


class SlurmCluster:
    """Nodes n1, n2, ... Use as a context manager; needs root."""

    def __init__(self, directory, nodes=2):
        self.folder = os.path.join(directory, "slurm")
        self.munge = os.path.join(self.folder, "munge")
        self.nodes = [f"n{i + 1}" for i in range(nodes)]
        self.processes = []
        self.environment = {**os.environ, "SLURM_CONF": os.path.join(self.folder, "slurm.conf")}

    def __enter__(self):
        try:
            self._configure()
            self._start("munged", "setpriv", "--reuid", "munge", "--regid", "munge", "--clear-groups", program("munged"),
                        "--foreground", *(f"--{what}={self.munge}/{file}" for what, file in (
                            ("socket", "socket"), ("key-file", "key"), ("pid-file", "pid"), ("log-file", "log"),
                            ("seed-file", "seed"))))
            harness.wait_for(lambda: os.path.exists(f"{self.munge}/socket"), "munged")
            self._start("slurmctld", program("slurmctld"), "-D", "-i")
            for node in self.nodes:
                self._start(node, program("slurmd"), "-D", "-N", node)
            harness.wait_for(lambda: self.call("sinfo", "-h", "-o", "%t %D", check=False) == f"idle {len(self.nodes)}",
                             "idle nodes")
        except BaseException as error:
            self.__exit__(type(error))
            raise
        return self

    def __exit__(self, failed, *_):
        for process in reversed(self.processes):
            if failed:
                print(f"--- {process.name}\n{process.log()[-2000:]}")
            if process.popen.poll() is None:
                process.popen.terminate()
                try:
                    process.popen.wait(30)
                except subprocess.TimeoutExpired:
                    process.kill9()

    def call(self, *args, check=True, **more):
        """Runs one of Slurm's commands; returns what it printed."""
        done = subprocess.run(args, capture_output=True, text=True, env=self.environment, timeout=60, **more)
        if check and done.returncode != 0:
            raise AssertionError(f"{' '.join(args)} ended with {done.returncode}:\n{done.stderr}")
        return done.stdout.strip()

    def job(self, number):
        """Returns what scontrol says of a job, by its names."""
        return dict(re.findall(r"(\w+)=(\S*)", self.call("scontrol", "show", "job", number)))

    def _start(self, name, *args):
        self.processes.append(harness.Process(
            self.folder, name, ["env", f"SLURM_CONF={self.environment['SLURM_CONF']}", *args]))

    def _configure(self):
        for folder in ("munge", "state", *(f"spool-{node}" for node in self.nodes)):
            os.makedirs(os.path.join(self.folder, folder))
        with open(f"{self.munge}/key", "wb") as f:
            f.write(os.urandom(128))
        os.chmod(f"{self.munge}/key", 0o600)
        os.chmod(self.munge, 0o711)
        for path in (self.munge, f"{self.munge}/key"):
            shutil.chown(path, "munge", "munge")
        # munged wants nobody else to reach its socket's folder but through folders that all may pass.
        os.chmod(os.path.dirname(self.folder), 0o711)
        os.chmod(self.folder, 0o711)
        ports = [harness.free_port() for _ in range(1 + len(self.nodes))]
        nodes = "\n".join(f"NodeName={node} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs=1"
                          for node, port in zip(self.nodes, ports[1:]))
        with open(self.environment["SLURM_CONF"], "w") as f:
            f.write(CONFIGURATION.format(folder=self.folder, munge=self.munge, ports=ports, nodes=nodes))
