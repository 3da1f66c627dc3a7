"""Checks that the house keeps its rules: who may include whom, and a few of form.

    python3 include_check.py ROOT

Prints each violation as path:line: what is wrong, and exits with 1 if there is any. Looks
at the files that git tracks, or at all files where ROOT is no git checkout.
"""

import collections
import fnmatch
import os
import re
import subprocess
import sys

# The data that placement is computed from.
PURE = ["runtime/model/code_format.h", "runtime/model/decoder_spec.h", "runtime/model/layer_weights.h", "runtime/kv/kv_groups.h",
        "runtime/kv/kv_layout.h"]

# The other rooms that a room, or a drawer of one, may include. Generated headers (sluice/v1/...) belong to proto.
MAY_INCLUDE = {
    "common": ["common/"],
    "proto": ["proto/", "common/"],
    "scheduler": ["scheduler/", "common/", "runtime/placement/", *PURE],
    "runtime": ["runtime/", "common/"],
    "runtime/placement": ["runtime/placement/", "common/", *PURE],
    "worker": ["worker/", "runtime/", "proto/", "common/"],
    "coordinator": ["coordinator/", "scheduler/", "proto/", "common/", "runtime/text/",
                    "runtime/model/"],
    "server": ["server/", "coordinator/", "scheduler/", "proto/", "common/", "runtime/model/model_path.h",
               "runtime/model/hub_cache.h"],
}
ROOMS = [*(room for room in MAY_INCLUDE if "/" not in room), "tests", "deploy"]

# The rows say what a drawer of the runtime may include of the runtime's others: all within "a/", only what lies in
# "a/*" itself, or one header. A folder without a row goes by the row of the folder that holds it.
BASE = ["runtime/trace/", "runtime/gguf/", "runtime/memory/", "runtime/model/", "runtime/quant/", "runtime/sample/", "runtime/kv/",
        "runtime/placement/", "runtime/weights/", "runtime/collective/"]
KERNELS = [*BASE, "runtime/kernels/*"]
CUDA_FACE = "runtime/kernels/cuda/cuda_access.h"  # for those who know nothing of CUDA
# The folders that all drawers of exec may include.
STAGE = [*KERNELS, *(f"runtime/exec/{name}.h" for name in
                     ("device_compute", "stage_work", "stream_context", "sweep_stats", "timed"))]
RUNTIME_MAY_INCLUDE = {
    "runtime/trace": [],
    "runtime/gguf": [],
    "runtime/text": ["runtime/text/", "runtime/gguf/"],
    "runtime/text/unicode": [],
    "runtime/text/tokenizer": ["runtime/text/unicode/", "runtime/gguf/"],
    "runtime/text/jinja": ["runtime/text/unicode/"],
    "runtime/model": ["runtime/model/", "runtime/gguf/"],
    "runtime/model/families": [f"runtime/model/{name}.h" for name in
                               ("config_reader", "decoder_spec", "layer_weights", "rotary")],
    "runtime/sample": [],
    "runtime/quant": ["runtime/model/"],
    "runtime/memory": ["runtime/trace/"],
    "runtime/kv": ["runtime/memory/"],
    "runtime/collective": ["runtime/memory/"],
    "runtime/placement": PURE,
    "runtime/weights": ["runtime/memory/", "runtime/model/", "runtime/quant/", "runtime/placement/"],
    "runtime/kernels": [*BASE, CUDA_FACE],
    "runtime/kernels/cpu": KERNELS,
    "runtime/kernels/cuda": [*KERNELS, "runtime/kernels/cuda/attention/*", "runtime/kernels/cuda/device/",
                             "runtime/kernels/cuda/gemm/"],
    "runtime/kernels/cuda/attention": [*KERNELS, "runtime/kernels/cuda/device/"],
    "runtime/kernels/cuda/gemm": [*KERNELS, "runtime/kernels/cuda/device/"],
    "runtime/kernels/cuda/device": [*KERNELS, CUDA_FACE],
    "runtime/exec/kv": STAGE,
    "runtime/exec/weights": STAGE,
    "runtime/exec/attention": [*STAGE, "runtime/exec/kv/"],
    "runtime/exec/activations": [*STAGE, "runtime/exec/weights/"],
    "runtime/exec": [*KERNELS, "runtime/exec/"],
    "runtime/profile": [*KERNELS, "runtime/kernels/cpu/", "runtime/exec/*"],
}
# (file, include): the reason why it is allowed.
RUNTIME_EXCEPTIONS = {
    ("runtime/kernels/backend_factory.cc", "runtime/kernels/cpu/cpu_backend.h"): "makes the backend that is asked for",
    ("runtime/kernels/backend_factory.cc", "runtime/kernels/cpu/discrete_backend.h"): "likewise",
}

SWEEP = "runtime/exec/stage_sweep."

# What is particular to a family stays in its file; all others work with DecoderSpec.
FAMILIES = "runtime/model/families/"
FAMILY_TEST = re.compile(r"\bmodel_type\s*[=!]=\s*\"")

WIRE = ["grpc/*", "grpcpp/*", "google/*", "sluice/*"]
EDGE = ["prometheus/*", "CLI/*", "boost/*"]  # exporters, flags and HTTP
LIBRARIES = ["nlohmann/*", "sqlite3.h", "unicode/*", "pcre2.h", "hwy/*", "oneapi/*", "dnnl*"]
CLOCKS_THREADS_IO = ["chrono", "thread", "mutex", "shared_mutex", "condition_variable",
                     "atomic", "future", "fstream", "iostream", "cstdio", "stdio.h", "ctime",
                     "time.h", "unistd.h", "sys/*", "absl/time/*", "absl/synchronization/*",
                     "common/threads/clock.h", "common/threads/thread.h", "common/threads/mutex.h",
                     "common/threads/bounded_queue.h", "common/host/logging.h", "common/metrics/metrics.h"]
MUST_NOT_INCLUDE = {
    "common": WIRE + EDGE + LIBRARIES,
    "common/codec": WIRE + EDGE + [library for library in LIBRARIES if library != "nlohmann/*"],
    "common/flags": WIRE + ["prometheus/*", "boost/*"] + LIBRARIES,
    "common/http": WIRE + ["prometheus/*", "CLI/*"] + [library for library in LIBRARIES if library != "nlohmann/*"],
    "common/metrics": WIRE + ["CLI/*", "boost/*"] + LIBRARIES,  # the exporter
    "scheduler": WIRE + EDGE + LIBRARIES + CLOCKS_THREADS_IO,
    "runtime": WIRE + EDGE,
    "runtime/placement": WIRE + EDGE + LIBRARIES + CLOCKS_THREADS_IO,
    "coordinator": ["runtime/kernels/*"],
}

GRPC = ["grpc/*", "grpcpp/*", "*.grpc.pb.h"]
GRPC_ONLY_IN = ["*_service.h", "*_service.cc", "*_client.h", "*_client.cc", "worker/link/*",
                "proto/*", "tests/*",
                "server/coordinator_server.h", "server/coordinator_server.cc"]  # starts services
CUDA = ["cuda.h", "cuda_*", "cuda/*", "cublas*", "cub/*", "thrust/*", "nccl*"]
CUDA_ONLY_IN = ["runtime/kernels/cuda/*", "worker/link/nccl*", "tests/*"]

# Includes that a file may have besides its room's.
MAY_ALSO_INCLUDE = {
    "server/local_profile.cc": ["worker/", "runtime/"],
    "server/local_models.cc": ["runtime/gguf/", "runtime/model/", "runtime/text/"],
    "server/cli/plan/models_speed.cc": ["runtime/model/model_dir.h"],
}

# These put a whole cluster together and start servers, so that rooms and gRPC meet in them.
COMPOSITION_ROOTS = ["server/local_cluster.h", "server/local_cluster.cc"]

# All servers and channels have their limits from one place. The queue is of a server that nobody can reach.
ENDPOINTS = re.compile(r"\b(ServerBuilder|CreateChannel|CreateCustomChannel|InProcessChannel)\b")
ENDPOINTS_ONLY_IN = ["proto/grpc_endpoint.cc", "proto/callback_queue.cc"]

GLPK_ONLY_IN = ["scheduler/plan/linear_program.cc"]

# The wall clock can be set to any time, so what waits by it may wait for hours: common/threads/deadline.h
# has the clock for that. Dates for people, times of files, and deadlines that go straight into
# gRPC, which turns them into its own monotonic clock's at once, are named here.
WALL_CLOCK = re.compile(r"\babsl::Now\(|\bsystem_clock\b|\bgettimeofday\b|\bCLOCK_REALTIME\b|"
                        r"(?<![\w.>])(std::)?time\((nullptr|NULL|0)\)|\bwait_until\(|"
                        r"\bpthread_cond_timedwait\b")
WALL_CLOCK_ONLY_IN = ["tests/*", "common/threads/clock.cc",
                      "runtime/model/checkpoint/content_hashes.cc",
                      "runtime/text/chat_template.cc",
                      "runtime/trace/trace.cc",
                      "proto/*", "server/job_client.cc", "server/coordinator_server.cc",
                      "server/local_cluster.cc", "worker/link/link_server.cc",
                      "server/access/audit_log.cc"]

CODE = (".h", ".cc", ".cu", ".cuh")
ONCE_PER_TARGET = "-inl.h"  # Highway includes such a header again for each instruction set
MOST_LINES = 800
LONG = CODE + (".py", ".proto", ".sh")
REASON = re.compile(r"long because", re.IGNORECASE)
MOST_FILES = 30  # C++ files of a folder
OUTSIDE = ".." + "/shared"  # nothing outside the tree is part of the project
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]')


def tracked_files(root):
    if os.path.exists(os.path.join(root, ".git")):
        git = ["git", "-c", "safe.directory=*", "-C", root, "ls-files", "-z"]
        try:
            listed = subprocess.run(git, capture_output=True, check=True).stdout
            return [f for f in listed.decode().split("\0")
                    if f and os.path.isfile(os.path.join(root, f))]
        except (OSError, subprocess.CalledProcessError):
            pass  # no git, or not ours to read
    found = []
    for folder, folders, names in os.walk(root):
        folders[:] = [f for f in folders
                      if not f.startswith(".") and f not in ("build", "__pycache__")]
        found += [os.path.relpath(os.path.join(folder, n), root) for n in names]
    return sorted(found)


def matches(name, patterns):
    return any(fnmatch.fnmatchcase(name, p) for p in patterns)


def runtime_drawer(path):
    """The drawer by whose row the file goes; "" if there is none."""
    folder = os.path.dirname(path)
    while folder and folder not in RUNTIME_MAY_INCLUDE:
        folder = os.path.dirname(folder)
    return folder


def runtime_error(path, included):
    """Returns what is wrong with an include of the runtime's `included` in its file `path`, or None."""
    drawer = runtime_drawer(path)
    if not drawer:
        return f"{os.path.dirname(path)} has no row in RUNTIME_MAY_INCLUDE"
    if drawer == runtime_drawer(included) or (path, included) in RUNTIME_EXCEPTIONS:
        return None
    for allowed in RUNTIME_MAY_INCLUDE[drawer]:
        if included.startswith(allowed) or allowed.endswith("/*") and os.path.dirname(included) == allowed[:-2]:
            return None
    return f"{drawer} must not include {included}"


def include_error(path, included):
    """Returns what is wrong with an include of `included` in the file `path`, or None."""
    room = path.split("/")[0]
    if included.startswith(".."):
        return f"include {included} from the root of the tree"
    if matches(included, CUDA) and not matches(path, CUDA_ONLY_IN):
        return f"{included}: CUDA stays in {', '.join(CUDA_ONLY_IN)}"
    if included == "glpk.h" and path not in GLPK_ONLY_IN:
        return f"glpk.h stays in {', '.join(GLPK_ONLY_IN)}"
    if path in COMPOSITION_ROOTS:
        return None
    drawer = "/".join(path.split("/")[:2])
    if matches(included, MUST_NOT_INCLUDE.get(drawer, MUST_NOT_INCLUDE.get(room, []))):
        return f"{drawer if drawer in MAY_INCLUDE else room} must not include {included}"
    if matches(included, GRPC) and not matches(path, GRPC_ONLY_IN):
        return f"{included}: gRPC stays in {', '.join(GRPC_ONLY_IN)}"
    who = drawer if drawer in MAY_INCLUDE else room
    if who in MAY_INCLUDE:
        part = "proto/" if included.startswith("sluice/") else included
        if part.split("/")[0] in ROOMS and "/" in part and not any(
                part.startswith(allowed)
                for allowed in MAY_INCLUDE[who] + MAY_ALSO_INCLUDE.get(path, [])):
            return f"{who} must not include {included}"
    if included.startswith(FAMILIES) and not path.startswith(("runtime/model/", "tests/")):
        return f"{included}: families are known to runtime/model; others work with DecoderSpec"
    if room == "runtime" and included.startswith("runtime/"):
        return runtime_error(path, included)
    return None


def check_file(path, text):
    lines = text.splitlines()
    for number, line in enumerate(lines, 1):
        if OUTSIDE in line:
            yield number, f"names {OUTSIDE}, which is not part of the project"
        if path.startswith(SWEEP) and "nullptr" in line:
            yield number, "the sweep asks nothing of its streams: what is absent is a stream of its own"
        if path.endswith(CODE):
            include = INCLUDE.match(line)
            error = include and include_error(path, include.group(1))
            if error:
                yield number, error
            endpoint = ENDPOINTS.search(line)
            if endpoint and path not in ENDPOINTS_ONLY_IN:
                yield number, f"{endpoint.group(1)}: proto/grpc_endpoint.h makes servers and channels"
            if FAMILY_TEST.search(line) and not path.startswith((FAMILIES, "tests/")):
                yield number, "asks for a family: give DecoderSpec what this depends on"
            wall = WALL_CLOCK.search(line)
            if wall and not matches(path, WALL_CLOCK_ONLY_IN):
                yield number, (f"{wall.group()}: the wall clock may be set; wait by common/threads/deadline.h")
    if path.endswith("README.md") and not text.startswith("# "):
        yield 1, 'does not begin with "# " and a title (is it formatted as if it were code?)'
    header = path.endswith((".h", ".cuh")) and not path.endswith(ONCE_PER_TARGET)
    if header and not any(line.strip() == "#pragma once" for line in lines):
        yield 1, "has no #pragma once"
    if (path.endswith(LONG) and len(lines) > MOST_LINES
            and not any(REASON.search(line) for line in lines[:20])):
        yield 1, (f"has {len(lines)} lines: split it, or say why at its head "
                  '("Long because ...")')


def check(root):
    """All violations in the tree, as strings."""
    errors = []
    for room in ["", *ROOMS]:
        if not os.path.isfile(os.path.join(root, room, "README.md")):
            errors.append(f"{os.path.join(room, 'README.md')}: missing")
    paths = tracked_files(root)
    folders = collections.Counter(os.path.dirname(path) for path in paths if path.endswith(CODE))
    # Those of the rooms themselves are looked for above.
    errors += [f"{folder}/README.md: missing" for folder in sorted(folders)
               if "/" in folder and folder.split("/")[0] in MAY_INCLUDE and f"{folder}/README.md" not in paths]
    errors += [f"{folder}: has {count} files: give it drawers" for folder, count in sorted(folders.items())
               if count > MOST_FILES]
    for path in paths:
        with open(os.path.join(root, path), "rb") as file:
            content = file.read()
        if b"\0" in content[:8192]:
            continue  # binary
        text = content.decode("utf-8", errors="replace")
        errors += [f"{path}:{number}: {what}" for number, what in check_file(path, text)]
    return errors


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    errors = check(sys.argv[1])
    print("\n".join(errors) if errors else "The house is in order.")
    sys.exit(1 if errors else 0)


if __name__ == "__main__":
    main()
