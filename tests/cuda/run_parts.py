#!/usr/bin/env python3
"""Runs the parts of tests/cuda/run.sh, one after the other, and writes results.

    run_parts.py --folder DIR [--bin DIR] [--emulation] [--out results.json] [--budget 570]
                 [--only PART,...]
    run_parts.py --list [--emulation]    the programs that are run

The folder is what pack.sh packed (bin, lib, model, commit); or, with --bin, where
programs are, the source tree. Parts:

  machine      what is here; stops the run if there is no GPU
  parity       kernels, products, the device, the backend and whole stages against the
               CPU's, over random shapes; and a stage whose GPU is lost
  equivalence  a trained model on the device and on the CPU: the same tokens in float32,
               and ones as likely in 16 bits
  memcheck     compute-sanitizer over a few cases of each kernel
  racecheck    the same, for races
  kernels      cuda_bench: rates beside copies, data sheet and cuBLASLt's best
  end_to_end   bench_cuda.py: the machine's profile, and models' shapes with dummy
               weights, predicted beside measured, FlexGen beside both

A part that fails, hangs or is missing does not stop the others. Each has a share of
the budget (SHARES), and may take up to three times as much as long as later parts
keep theirs; the last one has what is left. With --emulation the programs are linked
with the device of tests/cuda/emulation: the parts, flags and policies are the same,
but sizes are tiny, few suites are run, and there is no sanitizer. The file then says
"kind": "emulation", and its rates mean nothing. Standard library only.
"""

import argparse
import datetime
import glob
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))

# The seconds of each part, and of each of parity's suites. They add up to the budget, which leaves
# half a minute of ten to unpack and to end.
PARITY = {
    "cuda_attention_test": 40,
    "cuda_backend_test": 40,
    "cuda_device_test": 15,
    "cuda_kernels_test": 25,
    "cuda_lost_stage_test": 15,
    "cuda_products_test": 20,
    "cuda_whole_stage_test": 35,
}
SANITIZED = ["cuda_attention_test", "cuda_kernels_test"]
SHARES = {
    "machine": 20,
    **{f"parity: {name}": seconds for name, seconds in PARITY.items()},
    "equivalence": 70,
    **{f"{tool}: {name}": 30 for tool in ("memcheck", "racecheck") for name in SANITIZED},
    "kernels": 70,
    "end_to_end": 100,
}
BUDGET = sum(SHARES.values())
assert BUDGET <= 570, BUDGET
MOST_SHARES = 3
TO_END = 5  # seconds, of the run itself
# A few cases of each kernel: a sanitizer makes them tens to hundreds of times slower.
SMALL = {
    "cuda_kernels_test": "RotateRowsTest.*:QuantizedMatrixTest/2.*:RowsTest/2.*:NormRowsTest.*:"
                         "Formats/AppendKvTest.EqualsTheCpuBitForBit/*",
    "cuda_attention_test": "Formats/CudaAttentionTest.*OfRandomShapes/*",
}
SMALL_CASES = "5"  # SLUICE_TEST_CASES: of random shapes of attention, for each format
# A rehearsal runs only these tests of the whole suites, which are tests of their own.
REHEARSED = {
    "cuda_kernels_test": "NormRowsTest.*:RowsTest/2.*:Formats/AppendKvTest.OddValues/*",
    "cuda_attention_test": "Formats/CudaAttentionTest.Scores*:CudaAttentionPlanTest.*",
}


def suites(emulation):
    return sorted(REHEARSED if emulation else PARITY)


def test_program(name, emulation):
    return name if emulation else name + "_on_device"


def programs(emulation):
    """Returns all programs that run.sh runs and pack.sh packs."""
    others = ["cuda_bench_emulated", "sluice_emulated"] if emulation else ["cuda_bench", "sluice"]
    return [test_program(name, emulation) for name in suites(emulation)] + others


def tail(text, lines=25):
    return "\n".join(text.strip().splitlines()[-lines:])


def output_of(command, timeout=10):
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
        return done.stdout.strip() if done.returncode == 0 else ""
    except (OSError, subprocess.SubprocessError):
        return ""


class Run:
    def __init__(self, a):
        self.a = a
        self.start = time.monotonic()
        packed = a.bin is None
        self.bin = os.path.join(a.folder, "bin") if packed else a.bin
        self.model = os.path.join(a.folder, "model" if packed else "tests/models/llama-kjv")
        self.scripts = a.folder if packed else os.path.join(a.folder, "tests/bench")
        self.equivalence = os.path.join(a.folder if packed else HERE, "equivalence.py")
        self.work = tempfile.mkdtemp(prefix="sluice-cuda-results-")
        self.env = dict(os.environ)
        self.notes = []
        # The shares of the parts that are to come.
        absent = {f"parity: {name}" for name in set(PARITY) - set(suites(a.emulation))}
        self.shares = {part: seconds * min(1, a.budget / BUDGET)
                       for part, seconds in SHARES.items()
                       if self.wanted(part.split(":")[0]) and part not in absent}
        self.packed_commit = None
        if packed:
            self._use_libraries(os.path.join(a.folder, "lib"))
        commit = os.path.join(a.folder, "commit")
        if packed and os.path.exists(commit):
            with open(commit) as f:
                self.packed_commit = f.read().strip()
        self._find_cublas()
        self.results = {
            "kind": "emulation" if a.emulation else "device",
            "note": "A rehearsal without a GPU: rates mean nothing." if a.emulation else "",
            "commit": self.packed_commit or self._commit(), "programs": self.bin,
            "started": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "budget_seconds": a.budget, "seconds": 0, "machine": {}, "parts": []}
        if not a.emulation:
            del self.results["note"]
        self.bandwidth = 0

    def _commit(self):
        commit = output_of(["git", "-C", self.a.folder, "rev-parse", "HEAD"])
        dirty = output_of(["git", "-C", self.a.folder, "status", "--porcelain", "-uno"])
        return commit + ("-dirty" if dirty else "") if commit else "unknown"

    def _use_libraries(self, lib):
        """The carried libraries; the C++ ones only where the system's own won't do, since
        what belongs to the machine (compute-sanitizer, cuBLASLt) may need those."""
        before = self.env.get("LD_LIBRARY_PATH", "")
        after = [before] if before else []
        self.env["LD_LIBRARY_PATH"] = ":".join([lib, *after])
        for program in sorted(glob.glob(os.path.join(self.bin, "*"))):
            ldd = subprocess.run(["ldd", program], capture_output=True, text=True, env=self.env)
            if ldd.returncode != 0 or "not found" in ldd.stdout + ldd.stderr:
                self.notes.append("with the carried libstdc++")
                self.env["LD_LIBRARY_PATH"] = ":".join([lib, os.path.join(lib, "cxx"), *after])
                break

    def _find_cublas(self):
        """Finds cuBLASLt where PyTorch has it, if it is nowhere that sluice looks itself."""
        if self.env.get("SLUICE_CUBLASLT_LIBRARY"):
            return
        usual = glob.glob("/usr/local/cuda/lib64/libcublasLt.so.*")
        if usual or "libcublasLt.so" in output_of(["ldconfig", "-p"]):
            return
        found = []
        for root in sys.path + ["/opt", "/usr/lib/python3/dist-packages"]:
            if root:
                for middle in ("nvidia/*/lib", "*/.venv/lib/python3*/site-packages/nvidia/*/lib"):
                    found += glob.glob(os.path.join(root, middle, "libcublasLt.so.*"))
        found += glob.glob("/usr/local/cuda-*/lib64/libcublasLt.so.*")
        if found:
            self.env["SLUICE_CUBLASLT_LIBRARY"] = sorted(found)[-1]

    def left(self):
        return self.a.budget - (time.monotonic() - self.start)

    def wanted(self, part):
        return part == "machine" or not self.a.only or part in self.a.only.split(",")

    def limit_of(self, part):
        """Seconds that a part may take now."""
        later = sum(seconds for other, seconds in self.shares.items() if other != part)
        most = self.left() - TO_END - later
        return most if part == "end_to_end" else min(MOST_SHARES * self.shares[part], most)

    def program(self, part, name):
        """Returns the program's path; None if it is not there, which is recorded."""
        path = os.path.join(self.bin, name)
        if os.access(path, os.X_OK):
            return path
        self.record(part, "missing", why=f"{name} is not in {self.bin}")
        return None

    def sluice(self, part):
        return self.program(part, "sluice_emulated" if self.a.emulation else "sluice")

    def record(self, part, outcome, seconds=0.0, **more):
        self.shares.pop(part, None)
        entry = {"part": part, "outcome": outcome, "seconds": round(seconds, 2), **more}
        self.results["parts"].append(entry)
        why = f": {more['why']}" if "why" in more else ""
        print(f"{part}: {outcome}, {seconds:.1f} s{why}", file=sys.stderr, flush=True)
        self.write()
        return entry

    def write(self):
        """Writes the results; it is called after every part, so that a run that is cut off leaves
        what it has."""
        self.results["seconds"] = round(time.monotonic() - self.start, 2)
        outcomes = [p["outcome"] for p in self.results["parts"]]
        self.results["summary"] = {o: outcomes.count(o) for o in sorted(set(outcomes))}
        part = self.a.out + ".part"
        with open(part, "w") as f:
            json.dump(self.results, f, indent=1)
            f.write("\n")
        os.replace(part, self.a.out)

    def execute(self, part, command, data=None):
        """Runs a part's command. `data` names a JSON file that it writes, or is a function
        of its stdout."""
        limit = self.limit_of(part)
        if limit < 3:
            return self.record(part, "skipped", why="no time was left")
        start = time.monotonic()
        log = os.path.join(self.work, "log")
        with open(log, "w") as out:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=out, text=True,
                                       env=self.env, start_new_session=True)
            try:
                stdout, _ = process.communicate(timeout=limit)
                status = process.returncode
                outcome = "passed" if status == 0 else "failed"
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                stdout, _ = process.communicate()
                status, outcome = None, "timed out"
        with open(log) as f:
            stderr = f.read()
        more = {"limit_seconds": round(limit, 1), "exit": status,
                "command": " ".join([os.path.basename(command[0])] + command[1:])}
        if data is not None:
            try:
                if callable(data):
                    more["data"] = data(stdout)
                else:
                    with open(data) as f:
                        more["data"] = json.load(f)
            except (OSError, ValueError, KeyError) as error:
                if outcome == "passed":
                    outcome = "failed"
                more["data_error"] = str(error)
        if outcome != "passed":
            more["log"] = tail(stdout if not callable(data) else "") + "\n" + tail(stderr)
        return self.record(part, outcome, time.monotonic() - start, **more)

    # --- Parts ---

    def machine(self):
        info = {"processor": "", "cores": os.cpu_count(), "kernel": platform.release(),
                "libc": " ".join(platform.libc_ver()), "python": platform.python_version()}
        with open("/proc/cpuinfo") as f:
            for line in f:
                if line.startswith("model name"):
                    info["processor"] = line.split(":", 1)[1].strip()
                    break
        with open("/proc/meminfo") as f:
            info["memory_bytes"] = int(f.readline().split()[1]) * 1024
        fields = ["name", "driver_version", "memory.total", "power.limit", "clocks.max.sm",
                  "clocks.max.memory", "compute_cap", "pcie.link.gen.max", "pcie.link.width.max"]
        smi = output_of(["nvidia-smi", "--query-gpu=" + ",".join(fields), "--format=csv,noheader"],
                        timeout=20)
        info["gpus"] = [dict(zip(fields, [v.strip() for v in line.split(",")]))
                        for line in smi.splitlines()]
        info["cublaslt"] = self.env.get("SLUICE_CUBLASLT_LIBRARY", "as the system finds it")
        info["load"] = os.getloadavg()[0]
        if self.notes:
            info["notes"] = self.notes
        self.results["machine"] = info
        return bool(info["gpus"])

    def gtest(self, part, name, gtest_filter, wrapper=()):
        program = self.program(part, test_program(name, self.a.emulation))
        if program is None:
            return None
        report = os.path.join(self.work, "gtest.json")
        if os.path.exists(report):
            os.remove(report)
        command = [*wrapper, program, "--gtest_brief=1", f"--gtest_output=json:{report}"]
        if gtest_filter:
            command.append(f"--gtest_filter={gtest_filter}")
        entry = self.execute(part, command)
        if os.path.exists(report):
            with open(report) as f:
                counts = json.load(f)
            entry["tests"] = {k: counts[k] for k in ("tests", "failures", "disabled")}
            entry["failed"] = [f"{s['name']}.{c['name']}" for s in counts.get("testsuites", [])
                               for c in s["testsuite"] if c.get("failures")]
            if entry["outcome"] == "passed" and counts["tests"] == 0:
                entry["outcome"] = "failed"
                entry["why"] = "no test has this name"
            self.write()
        return entry

    def parity(self):
        for name in suites(self.a.emulation):
            self.gtest(f"parity: {name}", name, REHEARSED[name] if self.a.emulation else None)

    def sanitizer(self, tool):
        self.env["SLUICE_TEST_CASES"] = SMALL_CASES
        try:
            self.sanitize(tool)
        finally:
            del self.env["SLUICE_TEST_CASES"]

    def sanitize(self, tool):
        checker = shutil.which("compute-sanitizer")
        for place in sorted(glob.glob("/usr/local/cuda*/bin/compute-sanitizer")):
            checker = checker or place
        for name in SANITIZED:
            part = f"{tool}: {name}"
            if self.a.emulation:
                # The emulation checks each access and barrier by itself.
                self.gtest(part, name, REHEARSED[name])
            elif checker is None:
                self.record(part, "missing", why="there is no compute-sanitizer here")
            else:
                self.gtest(part, name, SMALL[name],
                           [checker, "--tool", tool, "--error-exitcode", "9",
                            "--target-processes", "application-only"])

    def memcheck(self):
        self.sanitizer("memcheck")

    def racecheck(self):
        self.sanitizer("racecheck")

    def equivalence_part(self):
        sluice = self.sluice("equivalence")
        if sluice is None:
            return
        report = os.path.join(self.work, "equivalence.json")
        command = [sys.executable, self.equivalence, "--sluice", sluice, "--model", self.model,
                   "--device", "cuda", "--out", report]
        if self.a.emulation:
            command.append("--tiny")
        self.execute("equivalence", command, report)

    def kernels(self):
        program = self.program("kernels",
                               "cuda_bench_emulated" if self.a.emulation else "cuda_bench")
        if program is None:
            return
        command = [program] + (["--tiny"] if self.a.emulation else [])
        entry = self.execute("kernels", command, json.loads)
        device = entry.get("data", {}).get("device", {})
        copy = entry.get("data", {}).get("copy")
        self.bandwidth = device.get("spec_memory_gb_s") or (
            copy[0]["gb_s"] if isinstance(copy, list) else 0)

    def end_to_end(self):
        sluice = self.sluice("end_to_end")
        if sluice is None:
            return
        report = os.path.join(self.work, "end_to_end.json")
        # The benchmark may take what the part may, less what it takes to end.
        total = max(5.0, self.limit_of("end_to_end") - 10)
        command = [sys.executable, os.path.join(self.scripts, "bench_cuda.py"), "--sluice", sluice,
                   "--device", "cuda", "--out", report, "--total", f"{total:.0f}", "--limit",
                   f"{min(120.0, total):.0f}"]
        if self.a.emulation:
            command.append("--tiny")
        elif self.bandwidth:
            command += ["--memory-gb-s", f"{self.bandwidth:.0f}"]
        self.execute("end_to_end", command, report)

    def all(self):
        there = self.machine()
        if not there and not self.a.emulation:
            self.record("machine", "failed",
                        why="there is no GPU here, or nvidia-smi does not see it; --emulation "
                            "rehearses without one")
            return 3
        self.record("machine", "passed")
        for part, body in [("parity", self.parity), ("equivalence", self.equivalence_part),
                           ("memcheck", self.memcheck), ("racecheck", self.racecheck),
                           ("kernels", self.kernels), ("end_to_end", self.end_to_end)]:
            if not self.wanted(part):
                continue
            try:
                body()
            except Exception as error:  # a part's fault is not the others'
                self.record(part, "failed", why=f"{type(error).__name__}: {error}")
        self.write()
        bad = [p["part"] for p in self.results["parts"]
               if p["outcome"] not in ("passed", "skipped")]
        print(f"{self.a.out}: {self.results['summary']} in {self.results['seconds']:.0f} s"
              + (f"; look at {', '.join(bad)}" if bad else ""), file=sys.stderr)
        return 1 if bad else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--folder")
    parser.add_argument("--bin", help="where programs are; default: in the folder's bin")
    parser.add_argument("--list", action="store_true", help="name the programs, and run nothing")
    parser.add_argument("--emulation", action="store_true")
    parser.add_argument("--out", default="cuda-results.json")
    parser.add_argument("--budget", type=float, default=BUDGET, help="seconds")
    parser.add_argument("--only", help="parts, comma-separated")
    a = parser.parse_args()
    if a.list:
        print("\n".join(programs(a.emulation)))
        return 0
    if not a.folder:
        parser.error("--folder is missing")
    run = Run(a)
    try:
        return run.all()
    finally:
        shutil.rmtree(run.work, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
