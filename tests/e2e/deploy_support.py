"""What the tests of deploy/ share: a bare Debian 12 in a folder, in which systemd boots, and packages that are there."""

import contextlib
import fcntl
import os
import shutil
import subprocess

import harness

ROOT = os.path.dirname(harness.TESTS)
DEPLOY = os.path.join(ROOT, "deploy")
BUILD = os.path.dirname(harness.BIN)
KEPT = os.path.join(BUILD, "deploy")  # what need not be made anew each time


def command(*args, check=True, **more):
    """Runs a command; returns what it printed, both ways."""
    done = subprocess.run(args, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          stdin=subprocess.DEVNULL, **more)
    if check and done.returncode != 0:
        raise AssertionError(f"{' '.join(args)} ended with {done.returncode}:\n{done.stdout[-6000:]}")
    return done.stdout


def need(*programs):
    """Skips the test where it can't run: deploy/packages.txt has what it needs, and it wants root."""
    missing = [p for p in programs if not shutil.which(p, path=os.environ["PATH"] + ":/usr/sbin:/sbin")]
    if missing:
        raise harness.Skipped(f"no {', '.join(missing)}; deploy/packages.txt names the packages")
    if os.geteuid() != 0:
        raise harness.Skipped("needs root")


@contextlib.contextmanager
def locked(name):
    """One process at a time makes what is kept."""
    os.makedirs(KEPT, exist_ok=True)
    with open(os.path.join(KEPT, f"{name}.lock"), "w") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        yield


def nspawn(root, *args, flags=(), **more):
    return command("systemd-nspawn", "--quiet", "-D", root, "--register=no", "--keep-unit",
                   *flags, *args, **more)


def debian(directory):
    """Makes a folder with a bare Debian 12 with systemd, as debootstrap makes it; returns its path."""
    base = os.path.join(KEPT, "bookworm")
    with locked("bookworm"):
        if not os.path.exists(os.path.join(base, "ready")):
            shutil.rmtree(base, ignore_errors=True)
            command("debootstrap", "--variant=minbase", "--include=systemd,systemd-sysv,dbus",
                    "bookworm", os.path.join(base, "root"), "http://deb.debian.org/debian")
            open(os.path.join(base, "ready"), "w").close()
    root = os.path.join(directory, "root")
    command("cp", "-a", "--reflink=auto", os.path.join(base, "root"), root)
    return root


def boot(root, script, seconds=150):
    """Boots systemd in `root` with a loopback of its own, runs `script` there as root, and ends it.
    Returns what the script printed; fails if it failed."""
    with open(os.path.join(root, "check.sh"), "w") as f:
        f.write(f"#!/bin/bash\nset -eux\n{script}")
    with open(os.path.join(root, "etc/systemd/system/check.service"), "w") as f:
        f.write("[Unit]\nAfter=multi-user.target\n[Service]\nType=oneshot\n"
                "ExecStart=/bin/bash -c '/bin/bash /check.sh >/check.log 2>&1; echo $? >/check.rc; "
                "journalctl --no-pager >/check.journal; systemctl --no-block poweroff'\n")
    wants = os.path.join(root, "etc/systemd/system/multi-user.target.wants")
    os.makedirs(wants, exist_ok=True)
    os.symlink("/etc/systemd/system/check.service", os.path.join(wants, "check.service"))
    # Its end is its own: a container that is powered off here can end with any code.
    with contextlib.suppress(subprocess.TimeoutExpired):
        nspawn(root, flags=("-b", "--private-network"), check=False, timeout=seconds)

    def read(name):
        path = os.path.join(root, name)
        return open(path, errors="replace").read() if os.path.exists(path) else ""
    assert read("check.rc").strip() == "0", f"{read('check.log')[-5000:]}\n{read('check.journal')[-5000:]}"
    return read("check.log")
