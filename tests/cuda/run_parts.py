#!/usr/bin/env python3
"""Runs the parts of tests/cuda/run.sh, one after the other, and writes results.

    run_parts.py --folder DIR [--emulation] [--out results.json] [--budget 570] [--only PART,...]

DIR is what pack.sh packed (bin, lib, model, commit) or the source tree. Parts:

  machine      what is here; stops the run if there is no GPU
  parity       every kernel against the CPU's, over random shapes
  equivalence  the same tokens on the device as on the CPU, float32, a trained model
  memcheck     compute-sanitizer over a few cases of each kernel
  racecheck    the same, for races
  kernels      cuda_bench: rates beside copies, data sheet and cuBLASLt's best
  end_to_end   bench_cuda.py: models' shapes with dummy weights, FlexGen beside

A part that fails, hangs or is missing does not stop the others; each has a limit,
and all together end within the budget. With --emulation the device is the one of
tests/cuda/emulation, sluice computes with cpu-discrete, sizes are tiny and the
sanitizers are left out: the file says "kind": "emulation", and its rates mean
nothing. Standard library only.
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
SKIPPED = 77  # device_present.cc

# A few cases of each kernel: a sanitizer makes them tens to hundreds of times slower.
SMALL = {
    "cuda_kernels_test": "RotateRowsTest.*:QuantizedMatrixTest/2.*:RowsTest/2.*:NormRowsTest.*:"
                         "Formats/AppendKvTest.EqualsTheCpuBitForBit/*",
    "cuda_attention_test": "Formats/CudaAttentionTest.*OfRandomShapes/*",
}
SMALL_CASES = "5"  # SLUICE_TEST_CASES: of random shapes of attention, for each format
# What a rehearsal runs of the whole suites, which are tests of their own.
REHEARSED = {
    "cuda_kernels_test": "NormRowsTest.*:RowsTest/2.*:Formats/AppendKvTest.OddValues/*",
    "cuda_attention_test": "Formats/CudaAttentionTest.Scores*:CudaAttentionPlanTest.*",
}


def tail(text, lines=25):
    return "\n".join(text.strip().splitlines()[-lines:])


def output_of(command, timeout=30):
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
        return done.stdout.strip() if done.returncode == 0 else ""
    except (OSError, subprocess.SubprocessError):
        return ""


class Run:
    def __init__(self, a):
        self.a = a
        self.start = time.monotonic()
        packed = os.path.isdir(os.path.join(a.folder, "bin"))
        self.bin = os.path.join(a.folder, "bin" if packed else "build/release/bin")
        if not packed and not a.emulation and not os.path.isdir(self.bin):
            self.bin = os.path.join(a.folder, "build/cuda/bin")
        self.model = os.path.join(a.folder, "model" if packed else "tests/models/llama-kjv")
        self.scripts = a.folder if packed else os.path.join(a.folder, "tests/bench")
        self.equivalence = os.path.join(a.folder if packed else HERE, "equivalence.py")
        self.work = tempfile.mkdtemp(prefix="sluice-cuda-results-")
        self.env = dict(os.environ)
        self.notes = []
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
            "commit": self.packed_commit or self._commit(),
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
        paths = [lib]
        probe = sorted(glob.glob(os.path.join(self.bin, "*")))[:1]
        before = self.env.get("LD_LIBRARY_PATH", "")
        self.env["LD_LIBRARY_PATH"] = ":".join(paths + ([before] if before else []))
        for program in probe:
            ldd = subprocess.run(["ldd", program], capture_output=True, text=True, env=self.env)
            if ldd.returncode != 0 or "not found" in ldd.stdout + ldd.stderr:
                paths.append(os.path.join(lib, "cxx"))
                self.notes.append("with the carried libstdc++")
                self.env["LD_LIBRARY_PATH"] = ":".join(paths + ([before] if before else []))

    def _find_cublas(self):
        """Where PyTorch has it, if it is nowhere that sluice looks itself."""
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
        return not self.a.only or part in self.a.only.split(",")

    def program(self, name):
        """A test's, in the kind that this run is about; None if it is not there."""
        path = os.path.join(self.bin, name if self.a.emulation else name + "_on_device")
        return path if os.access(path, os.X_OK) else None

    def record(self, part, outcome, seconds=0.0, **more):
        entry = {"part": part, "outcome": outcome, "seconds": round(seconds, 2), **more}
        self.results["parts"].append(entry)
        print(f"{part}: {outcome}, {seconds:.1f} s", file=sys.stderr, flush=True)
        self.write()
        return entry

    def write(self):
        """After every part, so that a run that is cut off leaves what it has."""
        self.results["seconds"] = round(time.monotonic() - self.start, 2)
        outcomes = [p["outcome"] for p in self.results["parts"]]
        self.results["summary"] = {o: outcomes.count(o) for o in sorted(set(outcomes))}
        part = self.a.out + ".part"
        with open(part, "w") as f:
            json.dump(self.results, f, indent=1)
            f.write("\n")
        os.replace(part, self.a.out)

    def execute(self, part, command, limit, data=None):
        """Runs a part's command. `data` names a JSON file that it writes, or is a function
        of its stdout."""
        limit = min(limit, self.left())
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
                outcome = {0: "passed", SKIPPED: "skipped"}.get(status, "failed")
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
        smi = output_of(["nvidia-smi", "--query-gpu=" + ",".join(fields), "--format=csv,noheader"])
        info["gpus"] = [dict(zip(fields, [v.strip() for v in line.split(",")]))
                        for line in smi.splitlines()]
        info["cublaslt"] = self.env.get("SLUICE_CUBLASLT_LIBRARY", "as the system finds it")
        info["load"] = os.getloadavg()[0]
        if self.notes:
            info["notes"] = self.notes
        self.results["machine"] = info
        return bool(info["gpus"])

    def gtest(self, part, name, gtest_filter, limit, wrapper=()):
        program = self.program(name)
        if program is None:
            return self.record(part, "missing", why=f"{name} is not in {self.bin}")
        report = os.path.join(self.work, "gtest.json")
        if os.path.exists(report):
            os.remove(report)
        command = [*wrapper, program, "--gtest_brief=1", f"--gtest_output=json:{report}"]
        if gtest_filter:
            command.append(f"--gtest_filter={gtest_filter}")
        entry = self.execute(part, command, limit)
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

    def suites(self):
        """Tests of kernels that are here."""
        if self.a.emulation:
            return sorted(REHEARSED)
        names = [os.path.basename(p)[:-len("_on_device")]
                 for p in glob.glob(os.path.join(self.bin, "*_on_device"))]
        return sorted(set(names) | {"cuda_kernels_test", "cuda_attention_test"})

    def parity(self):
        for name in self.suites():
            self.gtest(f"parity: {name}", name, REHEARSED[name] if self.a.emulation else None, 90)

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
        for name in self.suites():
            if name not in SMALL:
                continue
            part = f"{tool}: {name}"
            if self.a.emulation:
                # The emulation checks each access and barrier by itself.
                self.gtest(part, name, REHEARSED[name], 30)
            elif checker is None:
                self.record(part, "missing", why="there is no compute-sanitizer here")
            else:
                self.gtest(part, name, SMALL[name], 60,
                           [checker, "--tool", tool, "--error-exitcode", "9",
                            "--target-processes", "application-only"])

    def memcheck(self):
        self.sanitizer("memcheck")

    def racecheck(self):
        self.sanitizer("racecheck")

    def equivalence_part(self):
        sluice = os.path.join(self.bin, "sluice")
        if not os.access(sluice, os.X_OK):
            return self.record("equivalence", "missing", why=f"sluice is not in {self.bin}")
        report = os.path.join(self.work, "equivalence.json")
        command = [sys.executable, self.equivalence, "--sluice", sluice, "--model", self.model,
                   "--device", "cpu-discrete" if self.a.emulation else "cuda", "--out", report]
        if self.a.emulation:
            command.append("--tiny")
        return self.execute("equivalence", command, 60, report)

    def kernels(self):
        name = "cuda_bench_emulated" if self.a.emulation else "cuda_bench"
        program = os.path.join(self.bin, name)
        if not os.access(program, os.X_OK):
            return self.record("kernels", "missing", why=f"{name} is not in {self.bin}")
        command = [program] + (["--tiny"] if self.a.emulation else [])
        entry = self.execute("kernels", command, 120, json.loads)
        device = entry.get("data", {}).get("device", {})
        copy = entry.get("data", {}).get("copy")
        self.bandwidth = device.get("spec_memory_gb_s") or (
            copy[0]["gb_s"] if isinstance(copy, list) else 0)
        return entry

    def end_to_end(self):
        sluice = os.path.join(self.bin, "sluice")
        if not os.access(sluice, os.X_OK):
            return self.record("end_to_end", "missing", why=f"sluice is not in {self.bin}")
        report = os.path.join(self.work, "end_to_end.json")
        # What is left, less what it takes to end.
        total = max(5.0, self.left() - 15)
        command = [sys.executable, os.path.join(self.scripts, "bench_cuda.py"), "--bin", self.bin,
                   "--out", report, "--total", f"{total:.0f}", "--limit",
                   f"{min(120.0, total):.0f}"]
        if self.a.emulation:
            command += ["--tiny", "--device", "cpu-discrete"]
        elif self.bandwidth:
            command += ["--memory-gb-s", f"{self.bandwidth:.0f}"]
        return self.execute("end_to_end", command, total + 10, report)

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
    parser.add_argument("--folder", required=True)
    parser.add_argument("--emulation", action="store_true")
    parser.add_argument("--out", default="cuda-results.json")
    parser.add_argument("--budget", type=float, default=570, help="seconds")
    parser.add_argument("--only", help="parts, comma-separated")
    run = Run(parser.parse_args())
    try:
        return run.all()
    finally:
        shutil.rmtree(run.work, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
