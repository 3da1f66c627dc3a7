"""What the tests of deploy/ share: a bare Debian in a folder, in which systemd boots, and packages that are there."""

import atexit
import contextlib
import fcntl
import functools
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request

import harness

ROOT = os.path.dirname(harness.TESTS)
DEPLOY = os.path.join(ROOT, "deploy")
BUILD = os.path.dirname(harness.BIN)
KEPT = os.path.join(harness.USERS_CACHE, "sluice", "deploy")  # what need not be made anew each time, nor for each build
KEPT_SECONDS = 14 * 24 * 3600
MIRROR = "http://deb.debian.org/debian"


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


def pip_program(package, program, python=sys.executable):
    """Returns the path of a program of a package of PyPI, in an environment that is kept. Skips the test where PyPI is out of
    reach."""
    base = os.path.join(KEPT, f"pip-{package}")
    with locked(f"pip-{package}"):
        if not fresh(base):
            shutil.rmtree(base, ignore_errors=True)
            try:
                command(python, "-m", "venv", base)
                command(os.path.join(base, "bin", "pip"), "install", "-q", "--disable-pip-version-check", "--retries", "1",
                        package)
            except AssertionError as error:
                raise harness.Skipped(f"pip cannot install {package}: {str(error)[-300:]}") from None
            open(os.path.join(base, "ready"), "w").close()
    return os.path.join(base, "bin", program)


def fresh(base):
    """Says whether what is kept in `base` is whole and no older than KEPT_SECONDS."""
    ready = os.path.join(base, "ready")
    return os.path.exists(ready) and time.time() - os.path.getmtime(ready) < KEPT_SECONDS


@functools.cache
def packed(kind, *flags):
    """Packs the build by deploy/KIND/build.sh, once for all tests of the process; returns the path of the package."""
    directory = tempfile.mkdtemp(prefix="sluice-packed-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return command(os.path.join(DEPLOY, kind, "build.sh"), *flags, BUILD, directory).split()[-1]


def from_mirror(run, *args, **more):
    """Runs a command that fetches from Debian's mirror. Skips the test where that fails."""
    try:
        return run(*args, **more)
    except AssertionError as error:
        raise harness.Skipped(f"Debian's mirror gave not all: {str(error)[-500:]}") from None


def nspawn(root, *args, flags=(), **more):
    return command("systemd-nspawn", "--quiet", "-D", root, "--register=no", "--keep-unit",
                   *flags, *args, **more)


def kept_debian(suite="bookworm", include=()):
    """Makes a folder with a bare Debian, as debootstrap makes it, and these packages, and keeps it; returns its path, in which
    nothing may be changed. Skips the test where Debian's mirror is out of reach."""
    name = "-".join([suite, *include])
    base = os.path.join(KEPT, name)
    with locked(name):
        if not fresh(base):
            shutil.rmtree(base, ignore_errors=True)
            try:
                urllib.request.urlopen(f"{MIRROR}/dists/{suite}/Release", timeout=20).close()
            except OSError as error:
                raise harness.Skipped(f"{MIRROR} is out of reach: {error}") from None
            from_mirror(command, "debootstrap", "--variant=minbase", *([f"--include={','.join(include)}"] if include else []),
                        suite, os.path.join(base, "root"), MIRROR)
            open(os.path.join(base, "ready"), "w").close()
    return os.path.join(base, "root")


def debian(directory, suite="bookworm", include=()):
    """Makes a copy of such a Debian in `directory`; returns its path."""
    os.makedirs(directory, exist_ok=True)
    root = os.path.join(directory, "root")
    command("cp", "-a", "--reflink=auto", kept_debian(suite, include), root)
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
