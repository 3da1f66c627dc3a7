#include "runtime/kernels/backend.h"

#include "runtime/kernels/cpu/cpu_backend.h"
#include "runtime/kernels/cpu/discrete_backend.h"
#include "runtime/kernels/cuda/cuda_backend.h"

namespace sluice {

absl::StatusOr<std::unique_ptr<Backend>> Backend::Create(
    BackendKind kind, const DecoderSpec& spec, const Options& options) {
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
