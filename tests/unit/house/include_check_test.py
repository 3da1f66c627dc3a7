"""Tests include_check.py on small trees, each with one thing wrong."""

import os
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import include_check  # noqa: E402

GOOD = {
    "common/threads/mutex.h": '#pragma once\n#include <mutex>\n#include "absl/time/time.h"\n',
    "proto/convert.h": '#pragma once\n#include "sluice/v1/jobs.pb.h"\n#include "common/types.h"\n',
    "proto/grpc_status.h": "#pragma once\n#include <grpcpp/support/status.h>\n",
    "scheduler/plan/partition.cc": '#include "scheduler/plan/partition.h"\n#include "common/types.h"\n'
                                   '#include "runtime/placement/stage_placement.h"\n'
                                   '#include "runtime/model/decoder_spec.h"\n',
    "runtime/model/families/one.cc": '#include "runtime/model/families/family.h"\n'
                                     '#include "runtime/model/config_reader.h"\n'
                                     'if (spec.model_type == "one") return;\n',
    "runtime/model/names.cc": '#include "runtime/model/families/family.h"\n',
    "runtime/placement/sizes.cc": '#include "runtime/placement/sizes.h"\n#include "common/tier.h"\n'
                                  '#include "runtime/kv/kv_layout.h"\n',
    "runtime/exec/sweep.cc": '#include "runtime/kv/pages.h"\n#include <oneapi/dnnl/dnnl.hpp>\n',
    "runtime/exec/kv/stager.cc": '#include "runtime/exec/timed.h"\n#include "runtime/memory/disk/disk_file.h"\n',
    "runtime/exec/attention/a.cc": '#include "runtime/exec/kv/stager.h"\n',
    "runtime/kernels/cpu/a.cc": '#include "runtime/kernels/backend.h"\n#include "runtime/quant/codec.h"\n',
    "runtime/kernels/cuda/attention/instances/a.cu": '#include "runtime/kernels/cuda/attention/decode.cuh"\n',
    "runtime/profile/a.cc": '#include "runtime/exec/stage_executor.h"\n#include "runtime/kernels/cpu/gemm.h"\n',
    "runtime/kernels/cpu/simd-inl.h": "// Included once per target.\n",
    "runtime/kernels/cuda/gemm.cu": "#include <cublas_v2.h>\n#include <cuda_runtime.h>\n",
    "proto/grpc_endpoint.cc": "grpc::ServerBuilder builder;\n",
    "worker/link/link_server.cc": "  server_->Shutdown(std::chrono::system_clock::now());\n",
    "worker/stage.cc": '#include "runtime/exec/sweep.h"\n#include "proto/convert.h"\n',
    "worker/link/grpc_link.cc": '#include <grpcpp/grpcpp.h>\n',
    "worker/link/nccl_link.cc": "#include <nccl.h>\n",
    "worker/main.cc": '#include <CLI/CLI.hpp>\n#include "common/flags/daemon.h"\n#include "proto/security_flags.h"\n',
    "common/flags/a.cc": "#include <CLI/CLI.hpp>\n",
    "coordinator/plan.cc": '#include "scheduler/plan/partition.h"\n#include "runtime/text/tokenizer/tokenizer.h"\n'
                           '#include "runtime/model/decoder_spec.h"\n',
    "coordinator/profiles.cc": '#include "common/codec/profile_json.h"\n',
    "server/cli/profiles.cc": '#include "common/codec/profile_json.h"\n',
    "coordinator/cluster/worker_service.cc": '#include "sluice/v1/pipeline.grpc.pb.h"\n',
    "server/job_client.h": "#pragma once\n#include <grpcpp/channel.h>\n",
    "server/local_cluster.cc": '#include "worker/worker.h"\n',
    "tests/unit/any_test.cc": '#include "worker/stage.h"\n#include <grpcpp/grpcpp.h>\n',
    "tests/unit/long.cc": "// Long because it is a table.\n" + "int x;\n" * 900,
    "tests/data.bin": b"\0" * 10 + (".." + "/shared").encode(),
    "build/x.h": "no pragma\n",
    ".hidden/x.h": "no pragma\n",
}


def readmes(paths):
    """The READMEs that a tree with these files must have."""
    rooms = ("common", "proto", "scheduler", "runtime", "worker", "coordinator", "server")
    drawers = {os.path.dirname(path) for path in paths if path.startswith(tuple(f"{room}/" for room in rooms))}
    folders = ["", *include_check.ROOMS, *sorted(drawers - set(rooms))]
    return {os.path.join(folder, "README.md"): "# Folder\n" for folder in folders}


READMES = readmes(GOOD)

# path, content, what is reported
BAD = [
    ("common/a.h", '#pragma once\n#include "runtime/kv/pages.h"\n', "common must not include"),
    ("common/a.h", "#pragma once\n#include <grpcpp/grpcpp.h>\n", "common must not include"),
    ("common/a.cc", "#include <prometheus/counter.h>\n", "common must not include"),
    ("proto/a.cc", '#include "coordinator/plan.h"\n', "proto must not include"),
    ("scheduler/a.cc", '#include "proto/convert.h"\n', "scheduler must not include"),
    ("scheduler/a.cc", '#include "sluice/v1/jobs.pb.h"\n', "scheduler must not include"),
    ("scheduler/a.cc", '#include "runtime/model/model_dir.h"\n', "scheduler must not include"),
    ("scheduler/a.cc", '#include "runtime/kernels/backend.h"\n', "scheduler must not include"),
    ("runtime/placement/a.cc", '#include "runtime/memory/memory_budget.h"\n', "runtime/placement must not include"),
    ("runtime/placement/a.cc", '#include "scheduler/plan/plan.h"\n', "runtime/placement must not include"),
    ("runtime/placement/a.cc", "#include <thread>\n", "runtime/placement must not include thread"),
    ("scheduler/a.cc", "#include <thread>\n", "scheduler must not include thread"),
    ("scheduler/a.cc", '#include "common/threads/clock.h"\n', "scheduler must not include common/threads/clock.h"),
    ("scheduler/a.cc", "#include <fstream>\n", "scheduler must not include fstream"),
    ("scheduler/a.cc", "#include <glpk.h>\n", "glpk.h stays in"),
    ("runtime/exec/a.cc", "#include <grpcpp/grpcpp.h>\n", "runtime must not include"),
    ("runtime/exec/a.cc", "#include <google/protobuf/message.h>\n", "runtime must not include"),
    ("runtime/exec/a.cc", '#include "sluice/v1/jobs.pb.h"\n', "runtime must not include"),
    ("runtime/exec/a.cc", "#include <prometheus/registry.h>\n", "runtime must not include"),
    ("runtime/exec/a.cc", "#include <CLI/CLI.hpp>\n", "runtime must not include"),
    ("runtime/exec/a.cc", '#include "proto/convert.h"\n', "runtime must not include"),
    ("runtime/exec/a.cc", '  #  include  "worker/stage.h"\n', "runtime must not include"),
    ("worker/a.cc", '#include "scheduler/plan/partition.h"\n', "worker must not include"),
    ("worker/a.cc", '#include "coordinator/plan.h"\n', "worker must not include"),
    ("worker/a.cc", "#include <grpcpp/grpcpp.h>\n", "gRPC stays in"),
    ("worker/a.cc", "#include <cuda_runtime.h>\n", "CUDA stays in"),
    ("worker/main.cc", "#include <cuda_runtime.h>\n", "CUDA stays in"),
    ("worker/main.cc", "#include <grpcpp/grpcpp.h>\n", "gRPC stays in"),
    ("worker/main.cc", '#include "server/job_client.h"\n', "worker must not include"),
    ("worker/main.cc", '#include "server/coordinator_flags.h"\n', "worker must not include"),
    ("common/a.cc", "#include <CLI/CLI.hpp>\n", "common must not include CLI/CLI.hpp"),
    ("common/flags/a.cc", "#include <prometheus/counter.h>\n", "common must not include prometheus"),
    ("server/local_profile.cc", "#include <grpcpp/grpcpp.h>\n", "gRPC stays in"),
    ("server/coordinator_main.cc", '#include "worker/stage.h"\n', "server must not include"),
    ("worker/link/grpc_link.cc", "#include <nccl.h>\n", "CUDA stays in"),
    ("runtime/kernels/cpu/a.cc", "#include <cublas_v2.h>\n", "CUDA stays in"),
    ("coordinator/a.cc", '#include "runtime/kernels/backend.h"\n', "coordinator must not include"),
    ("coordinator/a.cc", '#include "runtime/exec/sweep.h"\n', "coordinator must not include"),
    ("coordinator/a.cc", '#include "runtime/profile/profiler.h"\n',
     "coordinator must not include"),
    ("server/a.cc", '#include "runtime/profile/profiler.h"\n', "server must not include"),
    ("coordinator/a.cc", '#include "worker/stage.h"\n', "coordinator must not include"),
    ("coordinator/a.cc", '#include "sluice/v1/pipeline.grpc.pb.h"\n', "gRPC stays in"),
    ("server/a.cc", '#include "worker/stage.h"\n', "server must not include"),
    ("server/a.cc", '#include "runtime/text/tokenizer/tokenizer.h"\n', "server must not include"),
    ("server/sub/main.cc", '#include "worker/stage.h"\n', "server must not include"),
    ("server/a.cc", '#include "../worker/stage.h"\n', "from the root"),
    ("server/a.cc", "grpc::ServerBuilder builder;\n", "makes servers and channels"),
    ("worker/link/a.cc", "grpc::CreateCustomChannel(a, b, c);\n", "makes servers and channels"),
    ("tests/unit/a.cc", "grpc::CreateChannel(a, b);\n", "makes servers and channels"),
    ("tests/unit/a.cc", "server->InProcessChannel({});\n", "makes servers and channels"),
    ("tests/a.h", "#ifndef A\n#define A\n#endif\n", "has no #pragma once"),
    ("runtime/a.h", "// #pragma once\n", "has no #pragma once"),
    ("tests/a.cc", "int x;\n" * 801, "has 801 lines"),
    ("tests/a.py", "x = 1\n" * 801 + "# long because too late\n", "has 802 lines"),
    ("worker/a.cc", "  const auto end = absl::Now() + wait;\n", "the wall clock may be set"),
    ("coordinator/a.cc", "  auto t = std::chrono::system_clock::now();\n", "the wall clock may be"),
    ("runtime/a.cc", "  if (time(nullptr) > end) return;\n", "the wall clock may be set"),
    ("runtime/trace/a.cc", '#include "runtime/memory/device.h"\n', "runtime/trace must not include"),
    ("runtime/text/unicode/a.cc", '#include "runtime/text/detokenizer.h"\n', "runtime/text/unicode must not include"),
    ("runtime/text/tokenizer/patterns/a.cc", '#include "runtime/text/jinja/ast.h"\n',
     "runtime/text/tokenizer must not include"),
    ("runtime/sample/a.cc", '#include "runtime/model/decoder_spec.h"\n', "runtime/sample must not include"),
    ("runtime/model/checkpoint/a.cc", '#include "runtime/quant/codec.h"\n', "runtime/model must not include"),
    ("runtime/memory/disk/a.cc", '#include "runtime/kv/pages.h"\n', "runtime/memory must not include"),
    ("runtime/kv/a.cc", '#include "runtime/exec/sweep.h"\n', "runtime/kv must not include"),
    ("runtime/placement/a.cc", '#include "runtime/model/model_dir.h"\n', "runtime/placement must not include"),
    ("runtime/kernels/a.cc", '#include "runtime/exec/sweep.h"\n', "runtime/kernels must not include"),
    ("runtime/kernels/a.cc", '#include "runtime/kernels/cpu/gemm.h"\n', "runtime/kernels must not include"),
    ("runtime/kernels/cpu/b.cc", '#include "runtime/kernels/cuda/rows.h"\n', "runtime/kernels/cpu must not include"),
    ("runtime/kernels/cuda/a.cc", '#include "runtime/kernels/cpu/gemm.h"\n', "runtime/kernels/cuda must not include"),
    ("runtime/kernels/cuda/device/a.cc", '#include "runtime/kernels/cuda/rows.h"\n',
     "runtime/kernels/cuda/device must not include"),
    ("runtime/kernels/cuda/gemm/a.cc", '#include "runtime/kernels/cuda/attention/a.h"\n',
     "runtime/kernels/cuda/gemm must not include"),
    ("runtime/exec/a.cc", '#include "runtime/kernels/cpu/gemm.h"\n', "runtime/exec must not include"),
    ("runtime/exec/a.cc", '#include "runtime/profile/measure.h"\n', "runtime/exec must not include"),
    ("runtime/exec/stage_sweep.cc", "if (device_ != nullptr) Copy();\n", "the sweep asks nothing of its streams"),
    ("runtime/exec/kv/a.cc", '#include "runtime/exec/stage_sweep.h"\n', "runtime/exec/kv must not include"),
    ("runtime/exec/kv/a.cc", '#include "runtime/exec/attention/a.h"\n', "runtime/exec/kv must not include"),
    ("runtime/exec/weights/a.cc", '#include "runtime/exec/kv/stager.h"\n', "runtime/exec/weights must not include"),
    ("runtime/model/families/a.cc", '#include "runtime/model/model_dir.h"\n',
     "runtime/model/families must not include"),
    ("runtime/weights/a.cc", '#include "runtime/model/families/family.h"\n', "families are known to runtime/model"),
    ("coordinator/a.cc", '#include "runtime/model/families/family.h"\n', "families are known to runtime/model"),
    ("runtime/exec/a.cc", 'if (spec.model_type == "llama") return;\n', "asks for a family"),
    ("runtime/attic/a.cc", '#include "runtime/kv/pages.h"\n', "runtime/attic has no row"),
    ("deploy/a.md", "ok\nsee .." + "/shared/x\n", "deploy/a.md:2: names"),
]


def write(root, files):
    for path, content in files.items():
        full = os.path.join(root, path)
        os.makedirs(os.path.dirname(full), exist_ok=True)
        with open(full, "wb") as file:
            file.write(content if isinstance(content, bytes) else content.encode())


class IncludeCheckTest(unittest.TestCase):
    def check(self, files):
        with tempfile.TemporaryDirectory() as root:
            write(root, files)
            return include_check.check(root)

    def test_a_good_tree_passes(self):
        self.assertEqual(self.check({**READMES, **GOOD}), [])

    def test_each_bad_file_is_reported_alone(self):
        base = {**readmes([*GOOD, *(path for path, _, _ in BAD)]), **GOOD}
        with tempfile.TemporaryDirectory() as root:
            write(root, base)
            for path, content, expected in BAD:
                with self.subTest(path=path, content=content[:60]):
                    write(root, {path: content})
                    errors = include_check.check(root)
                    self.assertEqual(len(errors), 1, errors)
                    self.assertTrue(errors[0].startswith(path + ":"), errors)
                    self.assertIn(expected, errors[0])
                if path in base:
                    write(root, {path: base[path]})
                else:
                    os.remove(os.path.join(root, path))

    def test_a_crowded_folder_is_reported(self):
        files = {f"worker/probe/file_{i}.cc": "" for i in range(include_check.MOST_FILES)}
        base = {**READMES, **GOOD, **files, "worker/probe/README.md": "# Probe\n"}
        self.assertEqual(self.check(base), [])
        self.assertEqual(self.check({**base, "worker/probe/one_more.h": "#pragma once\n"}),
                         ["worker/probe: has 31 files: give it drawers"])

    def test_a_readme_has_a_title(self):
        self.assertEqual(self.check({**READMES, **GOOD, "worker/README.md": "#worker\n\nText.\n"}),
                         ['worker/README.md:1: does not begin with "# " and a title (is it formatted as if it were code?)'])

    def test_the_order_of_the_runtime_has_no_circle(self):
        def drawers(row):
            for allowed in include_check.RUNTIME_MAY_INCLUDE[row]:
                if not allowed.endswith(".h"):
                    yield from (d for d in include_check.RUNTIME_MAY_INCLUDE if d != row and (d + "/").startswith(
                        allowed.rstrip("*")) and (allowed.endswith("/") or d + "/*" == allowed))

        done = set()

        def visit(row, above):
            self.assertNotIn(row, above)
            if row not in done:
                for below in drawers(row):
                    visit(below, [*above, row])
            done.add(row)

        for row in include_check.RUNTIME_MAY_INCLUDE:
            visit(row, [])

    def test_the_exceptions_of_the_runtime_are_there(self):
        root = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))
        for path, included in include_check.RUNTIME_EXCEPTIONS:
            with open(os.path.join(root, path)) as file:
                self.assertIn(f'#include "{included}"', file.read())

    def test_the_line_is_named(self):
        errors = self.check({**READMES, "common/a.cc": '\n\n#include "proto/convert.h"\n'})
        self.assertEqual(errors, ["common/a.cc:3: common must not include proto/convert.h"])

    def test_missing_readmes_are_reported(self):
        errors = self.check(GOOD)
        self.assertEqual(errors, [f"{path}: missing" for path in READMES])

    def test_a_folder_of_sources_without_a_readme_is_reported(self):
        for folder in ["common/threads", "runtime/exec/kv", "runtime/kernels/cuda/attention/instances"]:
            files = {**READMES, **GOOD}
            del files[f"{folder}/README.md"]
            self.assertEqual(self.check(files), [f"{folder}/README.md: missing"])

    def test_only_folders_of_sources_need_readmes(self):
        files = {**READMES, **GOOD, "proto/sluice/v1/jobs.proto": "", "tests/unit/deep/a_test.cc": ""}
        self.assertEqual(self.check(files), [])

    def test_in_a_git_checkout_only_tracked_files_count(self):
        with tempfile.TemporaryDirectory() as root:
            write(root, {**READMES, "common/a.h": "none\n", "common/b.h": "none\n"})
            try:
                subprocess.run(["git", "-C", root, "init", "-q"], check=True)
            except OSError:
                self.skipTest("git is not installed")
            subprocess.run(["git", "-C", root, "add", "common/a.h"], check=True)
            self.assertEqual(include_check.check(root), ["common/a.h:1: has no #pragma once"])

    def test_the_program_fails_and_says_why(self):
        script = os.path.join(HERE, "include_check.py")
        with tempfile.TemporaryDirectory() as root:
            write(root, {**READMES, **GOOD})
            run = subprocess.run([sys.executable, script, root], capture_output=True, text=True)
            self.assertEqual((run.returncode, run.stderr), (0, ""))
            write(root, {"common/a.h": "none\n"})
            run = subprocess.run([sys.executable, script, root], capture_output=True, text=True)
            self.assertEqual(run.returncode, 1)
            self.assertIn("common/a.h:1", run.stdout)


if __name__ == "__main__":
    unittest.main()
