#pragma once

#include "absl/status/status.h"

namespace sluice {

// Loads libcublasLt, once for the process; it stays. It has half a gigabyte and
// comes with the toolkit or with PyTorch, so no program of ours is linked with
// it: cublas_library.cc has functions under its names that hand on to it.
//
// It is looked for in this order: the file that the environment variable
// SLUICE_CUBLASLT_LIBRARY names, and nothing else if it is set; where the
// system's loader finds libcublasLt.so.N, N being that of the toolkit that this
// was built with (LD_LIBRARY_PATH, ldconfig); lib64 and lib below CUDA_HOME,
// CUDA_PATH and /usr/local/cuda.
//
// kFailedPrecondition says what was looked for, and what to do: it was not
// found, or is older than the toolkit that this was built with, or lacks a
// function. The answer stays the same. Thread-safe.
absl::Status LoadCublas();

}  // namespace sluice
