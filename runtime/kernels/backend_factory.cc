#include "runtime/kernels/backend_parts.h"
#include "runtime/kernels/cpu/cpu_backend.h"
#include "runtime/kernels/cpu/discrete_backend.h"
#include "runtime/kernels/cuda/cuda_access.h"

namespace sluice {

absl::StatusOr<BackendParts> CreateBackend(BackendKind kind,
                                           const DecoderSpec& spec,
                                           const BackendOptions& options) {
  switch (kind) {
    case BackendKind::kCpu:
      return CpuBackend::Create(spec, options);
    case BackendKind::kCpuDiscrete:
      return DiscreteBackend::Create(spec, options);
    case BackendKind::kCuda:
      return CreateCudaBackend(spec, options);
  }
  return absl::InvalidArgumentError("no such backend");
}

}  // namespace sluice
