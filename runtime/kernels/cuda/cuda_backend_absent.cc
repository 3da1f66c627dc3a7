#include "runtime/kernels/backend_parts.h"
#include "runtime/kernels/cuda/cuda_access.h"

namespace sluice {

absl::StatusOr<BackendParts> CreateCudaBackend(const DecoderSpec& spec,
                                               const BackendOptions& options) {
  return absl::UnimplementedError(
      "this build of Sluice has no CUDA backend; use the CPU backend");
}

}  // namespace sluice
