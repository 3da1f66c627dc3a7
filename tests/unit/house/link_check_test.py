"""Tests link_check.py on small trees, each with one thing wrong."""

import os
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import link_check  # noqa: E402

GOOD = {
    "common/CMakeLists.txt": """# add_library(sluice_nothing nothing.h)
add_library(sluice_common STATIC
  types.cc
  types.h)
target_link_libraries(sluice_common PUBLIC absl::strings PRIVATE spdlog::spdlog)
""",
    "common/types.h": "#include <map>\n",
    "common/types.cc": '#include "common/types.h"\n',
    "proto/CMakeLists.txt": "add_library(sluice_proto_gen STATIC ${GENERATED})\n"
                            "target_link_libraries(sluice_proto_gen PUBLIC gRPC::grpc++)\n",
    "runtime/kernels/kernels.cmake": "set(KERNELS\n  ${CMAKE_CURRENT_LIST_DIR}/gemm.cu\n"
                                     "  ${CMAKE_CURRENT_LIST_DIR}/gemm.h)\n",
    "runtime/kernels/CMakeLists.txt": """include(kernels.cmake)
add_library(sluice_kernels STATIC ${KERNELS} ../both.h)
target_link_libraries(sluice_kernels PUBLIC sluice_common PRIVATE sluice_kv)
add_library(sluice_kv kv.h)
add_library(sluice_gpu INTERFACE)
target_link_libraries(sluice_gpu INTERFACE $<LINK_ONLY:$<LINK_LIBRARY:WHOLE_ARCHIVE,sluice_kernels>>)
""",
    "runtime/both.h": "",
    "runtime/kernels/kv.h": "",
    "runtime/kernels/gemm.h": '#include "runtime/both.h"\n',
    "runtime/kernels/gemm.cu": '#include "runtime/kernels/kv.h"\n#include "common/types.h"\n',
    "worker/CMakeLists.txt": "add_executable(sluice-worker main.cc)\n"
                             "target_link_libraries(sluice-worker PRIVATE sluice_kernels sluice_proto_gen)\n",
    "worker/main.cc": '#include "common/types.h"\n#include "runtime/kernels/gemm.h"\n#include "sluice/v1/jobs.grpc.pb.h"\n',
    "tests/unit/a.cc": '#include "common/types.h"\n',
}

# path, content, what is reported
BAD = [
    ("common/types.h", '#include "runtime/both.h"\n',
     "common/types.h:1: sluice_common does not link sluice_kernels, which runtime/both.h belongs to"),
    ("worker/main.cc", '\n#include "runtime/kernels/kv.h"\n',
     "worker/main.cc:2: sluice-worker does not link sluice_kv, which runtime/kernels/kv.h belongs to"),
    ("runtime/kernels/kv.h", '#include "common/types.h"\n',
     "runtime/kernels/kv.h:1: sluice_kv does not link sluice_common, which common/types.h belongs to"),
    ("common/types.cc", "#include <sluice/v1/jobs.pb.h>\n",
     "common/types.cc:1: sluice_common does not link sluice_proto_gen, which sluice/v1/jobs.pb.h belongs to"),
    ("common/nothing.h", "", "common/nothing.h:1: is in no target's list of files"),
    ("worker/CMakeLists.txt", "add_executable(sluice-worker main.cc)\n"
     "target_link_libraries(sluice-worker PRIVATE sluice_gpu sluice_common)\n",
     "worker/main.cc:3: sluice-worker does not link sluice_proto_gen, which sluice/v1/jobs.grpc.pb.h belongs to"),
]


def write(root, files):
    for path, content in files.items():
        full = os.path.join(root, path)
        os.makedirs(os.path.dirname(full), exist_ok=True)
        with open(full, "w") as file:
            file.write(content)


class LinkCheckTest(unittest.TestCase):

    def test_a_good_tree_passes(self):
        with tempfile.TemporaryDirectory() as root:
            write(root, GOOD)
            self.assertEqual(link_check.check(root), [])

    def test_each_bad_file_is_reported_alone(self):
        for path, content, expected in BAD:
            with self.subTest(path=path, content=content), tempfile.TemporaryDirectory() as root:
                write(root, {**GOOD, path: content})
                self.assertEqual(link_check.check(root), [expected])


if __name__ == "__main__":
    unittest.main()
