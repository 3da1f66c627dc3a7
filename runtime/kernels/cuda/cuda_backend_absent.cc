#include "runtime/kernels/cuda/cuda_backend.h"

namespace sluice {

absl::StatusOr<std::unique_ptr<Backend>> CreateCudaBackend(
    const DecoderSpec& spec, const Backend::Options& options) {
  return absl::UnimplementedError(
      "this build of Sluice has no CUDA backend; use the CPU backend");
}

}  // namespace sluice
