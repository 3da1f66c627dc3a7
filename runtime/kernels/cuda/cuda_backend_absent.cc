#include "runtime/kernels/cuda/cuda_backend.h"

namespace sluice {

absl::Status CheckCuda() {
  return absl::UnimplementedError(
      "this build of Sluice has no CUDA backend; use the CPU backend");
}

absl::StatusOr<std::unique_ptr<Backend>> CreateCudaBackend(
    const DecoderSpec& spec, const Backend::Options& options) {
  return CheckCuda();
}

}  // namespace sluice
