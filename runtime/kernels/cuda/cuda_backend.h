#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "runtime/kernels/backend.h"

namespace sluice {

// kUnimplemented in a build without CUDA.
absl::Status CheckCuda();
absl::StatusOr<std::unique_ptr<Backend>> CreateCudaBackend(
    const DecoderSpec& spec, const Backend::Options& options);

}  // namespace sluice
