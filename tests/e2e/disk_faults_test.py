"""Disks that are full, closed or odd: each fault is an error that says what to do,
leaves no half-made files, and the same job completes once it is mended.

Most tests mount small file systems, in a mount namespace of this process; where
that is not allowed they are skipped, and say so."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import harness
import offload_test as offload
from offload_test import LLAMA, images, left_over, policy, run_bounded

FLAGS = ("--dtype", "float32", "--gbs", "4", "--max-step-tokens", "128")
# This space is more than any of the disks has, so that the disk itself has to refuse.
IMAGES = 8  # six layers, and the head in two sections
SPACE = ("--disk-space", "1GiB")
NOBODY = 65534


class Disk:
    """A new file system on a directory: `tmpfs` of a size, or `ramfs`."""

    def __init__(self, size=None, kind="tmpfs"):
        self.size, self.kind = size, kind

    def __enter__(self):
        self.path = tempfile.mkdtemp(prefix="sluice-disk-")
        if self._mount(f"size={self.size}") != 0:
            os.rmdir(self.path)
            raise harness.Skipped("this user may not mount here")
        return self

    def _mount(self, options):
        if not os.environ.get("SLUICE_OWN_MOUNTS"):
            return 1
        return subprocess.run(
            ["mount", "-t", self.kind, *(["-o", options] if self.size else []), "none",
             self.path], capture_output=True).returncode

    def grow(self, size):
        assert self._mount(f"remount,size={size}") == 0

    def __exit__(self, *_):
        subprocess.run(["umount", "-l", self.path])
        os.rmdir(self.path)


def good_answers(*flags):
    done, results = run_bounded(*FLAGS, *flags)
    assert done.returncode == 0, done.stderr
    return harness.answers(results)


def fails(words, *flags):
    """Expects a run to end with an error that has all the words; returns its stderr."""
    done, _ = run_bounded(*FLAGS, *flags)
    assert done.returncode == 1, (done.returncode, done.stderr)
    last = done.stderr[done.stderr.rindex("sluice: "):]
    for word in words:
        assert word in last, (word, done.stderr)
    return done.stderr


def test_a_disk_that_fills_while_images_are_built():
    base = good_answers()
    with Disk("2m") as disk:
        flags = ("--disk-dir", disk.path, *policy("w=0/0/100"))
        # Asked first, the disk says that it is too small: nothing is begun.
        fails(["disk memory is short by", "--disk-space", "weight images"], *flags)
        assert not images(disk.path) and not left_over(disk.path)
        fails(["no room on the disk for", ".img", disk.path, "bytes are free", "free some",
               "--disk-dir"], *flags, *SPACE)
        built = images(disk.path)
        assert 0 < len(built) < 7, built
        assert not left_over(disk.path), left_over(disk.path)
        disk.grow("64m")
        assert good_answers(*flags, *SPACE) == base
        now = images(disk.path)
        assert len(now) == IMAGES and not left_over(disk.path), now
        # The images that were finished before are taken.
        assert {p: i for p, i in now.items() if p in built} == built


def check_no_room(name, text):
    base = good_answers()
    with Disk("1m") as disk:
        flags = ("--disk-dir", disk.path, *SPACE, *policy(text))
        fails([f"{disk.path}/({name})", "no room on the disk for", "bytes are free",
               "--disk-dir"], *flags)
        assert not os.listdir(disk.path)
        disk.grow("64m")
        assert good_answers(*flags) == base
        assert not left_over(disk.path)


def test_a_disk_without_room_for_the_kv_cache():
    check_no_room("kv cache", "w=0/100/0 c=0/0/100")


def test_a_disk_without_room_for_activations():
    check_no_room("activations", "w=0/100/0 h=0/0/100 num-microbatches=16")


def temporary_file(pid, directory):
    """The open file without a name that has its room already; None before."""
    base = f"/proc/{pid}/fd"
    for fd in os.listdir(base):
        try:
            path = os.path.join(base, fd)
            info = os.stat(path)
            if (os.readlink(path).startswith(directory + "/") and info.st_nlink == 0 and
                    info.st_size > 0 and info.st_blocks * 512 >= info.st_size):
                return path
        except OSError:
            pass
    return None


def fill(directory):
    """A file that takes all the room there is."""
    path = os.path.join(directory, "filler")
    with open(path, "wb", buffering=0) as f:
        try:
            while f.write(bytes(1 << 16)):
                pass
        except OSError:
            pass
    return path


def check_fills_while_running(name, text):
    """The room that was reserved is taken away from a job that runs: what a file
    system that reserves nothing does when others fill it."""
    with Disk("16m") as disk, tempfile.TemporaryDirectory() as directory:
        source = os.path.join(directory, "in.jsonl")
        target = os.path.join(directory, "out.jsonl")
        harness.write_lines(source, [json.dumps(
            {"prompt": f"And it came to pass {i}", "max_tokens": 120, "ignore_eos": True,
             "temperature": 0}) for i in range(16)])

        def start(*more):
            return subprocess.Popen(
                [os.path.join(harness.BIN, "sluice"), "run", "--model", LLAMA, "--input",
                 source, "--output", target, "-q", "--host-memory", "1GiB", *FLAGS, *more],
                stderr=subprocess.PIPE, text=True)

        def answers_of(process):
            error = process.communicate(timeout=60 * harness.SLOW)[1]
            assert process.returncode == 0, error
            with open(target) as f:
                return harness.answers([json.loads(line) for line in f])

        base = answers_of(start())
        flags = ("--disk-dir", disk.path, *SPACE, *policy(text))
        process = start(*flags)
        try:
            deadline = time.monotonic() + 60 * harness.SLOW
            while not (file := temporary_file(process.pid, disk.path)):
                assert process.poll() is None, process.stderr.read()
                assert time.monotonic() < deadline
                time.sleep(0.0005)
            process.send_signal(signal.SIGSTOP)
            os.waitpid(process.pid, os.WUNTRACED)
            size = os.stat(file).st_size
            subprocess.run(["fallocate", "--punch-hole", "-o", "0", "-l", str(size), file],
                           check=True)
            filler = fill(disk.path)
            process.send_signal(signal.SIGCONT)
            error = process.communicate(timeout=60 * harness.SLOW)[1]
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        assert process.returncode == 1, error
        for word in (f"{disk.path}/({name})", "writing", "No space left on device",
                     "free some room", "--disk-dir"):
            assert word in error, (word, error)
        assert os.listdir(disk.path) == ["filler"]
        os.unlink(filler)
        assert answers_of(start(*flags)) == base


def test_a_disk_that_fills_while_the_kv_cache_is_written():
    check_fills_while_running("kv cache", "w=0/100/0 c=0/0/100")


def test_a_disk_that_fills_while_activations_are_written():
    check_fills_while_running("activations", "w=0/100/0 h=0/0/100 num-microbatches=4")


def test_a_budget_that_is_too_small_and_then_is_not():
    base = good_answers()
    with offload.DiskDir() as disk:
        flags = ("--disk-dir", disk, *policy("w=0/0/100 c=0/50/50 h=0/0/100 num-microbatches=4"))
        for budget, words in (
                (("--host-memory", "1MiB"), ["1048576", "--host-memory"]),
                (("--host-memory", "256MiB", "--disk-space", "1MiB"),
                 ["1048576", "--disk-space", "weight images", "kv cache", "activations"])):
            fails(words, *flags, *budget)
            assert not images(disk) and not left_over(disk)
        assert good_answers(*flags, "--host-memory", "256MiB", "--disk-space", "256MiB") == base
        assert not left_over(disk)


def test_a_directory_that_this_user_may_not_use():
    """Runs as another user where this one is root, whom no mode stops."""
    root = os.geteuid() == 0
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o755)
        model = os.path.join(directory, "model")
        shutil.copytree(LLAMA, model)
        source = os.path.join(directory, "in.jsonl")
        harness.write_lines(source, harness.mixed_requests(4))
        disk = os.path.join(directory, "disk")
        os.mkdir(disk)
        for path in (model, disk):
            if root:
                os.chown(path, NOBODY, NOBODY)

        def run(*flags):
            return subprocess.run(
                [os.path.join(harness.BIN, "sluice"), *flags], capture_output=True, text=True,
                timeout=60 * harness.SLOW, cwd="/",
                **({"user": NOBODY, "group": NOBODY, "extra_groups": []} if root else {}))

        try:
            works = run("run", "--help").returncode == 0
        except OSError:
            works = False
        if not works:
            raise harness.Skipped("another user can't run the programs here")
        flags = ("run", "--model", model, "-i", source, "-o", "-", "-q", *FLAGS,
                 "--disk-dir", disk, *policy("w=0/0/100"))

        def check_refused(path, *words):
            done = run(*flags)
            assert done.returncode == 1, (done.returncode, done.stderr)
            last = done.stderr[done.stderr.rindex("sluice: "):]
            for word in (path, "Permission denied", *words):
                assert word in last, (word, done.stderr)

        def check_runs():
            done = run(*flags)
            assert done.returncode == 0, done.stderr
            assert len(done.stdout.splitlines()) == 4
            assert not left_over(disk)

        for mode in (0o000, 0o555):
            os.chmod(disk, mode)
            check_refused(disk, "--disk-dir")
            os.chmod(disk, 0o700)
            assert not os.listdir(disk)
        check_runs()
        # An image is refused if it may not be read.
        image = sorted(images(disk))[2]
        os.chmod(image, 0)
        check_refused(image)
        os.chmod(image, 0o600)
        before = images(disk)
        check_runs()
        assert images(disk) == before


def check_without_direct_io(disk, why, *space):
    base = good_answers()
    flags = ("--disk-dir", disk, *space,
             *policy("w=0/20/80 c=0/50/50 h=0/0/100 num-microbatches=3"))
    for _ in range(2):
        done, results = run_bounded(*FLAGS, *flags)
        assert done.returncode == 0, done.stderr
        assert harness.answers(results) == base
        said = [line for line in done.stderr.splitlines() if "through the page cache" in line]
        # The program says so once for the images' directory, and once for the other files'.
        assert len(said) == 2 and all(why in line and disk in line for line in said), done.stderr
    assert len(images(disk)) == IMAGES and not left_over(disk)


def test_a_disk_that_is_memory_is_used_through_the_cache():
    if not os.access("/dev/shm", os.W_OK):
        raise harness.Skipped("no tmpfs at /dev/shm")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as disk:
        check_without_direct_io(disk, "tmpfs")


def test_a_disk_without_direct_io_is_used_through_the_cache():
    # ramfs has no O_DIRECT, reserves no room, and does not say how much it has.
    with Disk(kind="ramfs") as disk:
        fails([disk.path, "does not say how much is free", "--disk-space"],
              "--disk-dir", disk.path, *policy("w=0/0/100"))
        check_without_direct_io(disk.path, "direct", *SPACE)


def test_a_clusters_job_waits_for_room():
    lines = harness.mixed_requests(6)
    base = harness.answers(harness.run(LLAMA, lines, *FLAGS)[1])
    with Disk("1m") as disk, tempfile.TemporaryDirectory() as directory:
        source = os.path.join(directory, "in.jsonl")
        harness.write_lines(source, lines)
        with harness.Cluster(
                LLAMA, workers=1, coordinator_flags=(*FLAGS, *policy("w=0/0/100")),
                worker_flags=("--disk-dir", disk.path, *SPACE)) as cluster:
            job = cluster.submit(source)["id"]
            harness.wait_for(
                lambda: "no room on the disk for" in cluster.workers["worker-0"].log(),
                "the worker to say what it lacks")
            assert cluster.status(job)["status"] == "in_progress", cluster.status(job)
            assert not left_over(disk.path)
            disk.grow("64m")
            assert cluster.wait_for_end(job)["status"] == "completed"
            assert harness.answers(cluster.results(job)) == base


def in_own_mounts():
    """Runs this program again with mounts that nobody else sees, and that go with it."""
    if "SLUICE_OWN_MOUNTS" not in os.environ:
        own = subprocess.run(["unshare", "--mount", "true"], capture_output=True)
        if own.returncode == 0:
            os.environ["SLUICE_OWN_MOUNTS"] = "1"
            os.execvp("unshare", ["unshare", "--mount", "--propagation", "private",
                                  sys.executable, *sys.argv])
        os.environ["SLUICE_OWN_MOUNTS"] = ""


if __name__ == "__main__":
    in_own_mounts()
    harness.run_tests(sys.modules[__name__])
