#include "runtime/kernels/backend.h"

#include "absl/strings/str_cat.h"
#include "runtime/kernels/cpu/cpu_backend.h"
#include "runtime/kernels/cpu/discrete_backend.h"
#include "runtime/kernels/cuda/cuda_backend.h"

namespace sluice {

absl::StatusOr<BackendKind> ParseBackendKind(absl::string_view name) {
  if (name == "cpu") return BackendKind::kCpu;
  if (name == "cpu-discrete") return BackendKind::kCpuDiscrete;
  if (name == "cuda") return BackendKind::kCuda;
  return absl::InvalidArgumentError(absl::StrCat(
      "no device \"", name, "\": expected cpu, cpu-discrete or cuda"));
}

absl::string_view BackendKindName(BackendKind kind) {
  switch (kind) {
    case BackendKind::kCpu:
      return "cpu";
    case BackendKind::kCpuDiscrete:
      return "cpu-discrete";
    case BackendKind::kCuda:
      return "cuda";
  }
  return "unknown";
}

absl::Status CheckBackendKind(BackendKind kind) {
  return kind == BackendKind::kCuda ? ReadGpuFacts(0).status()
                                    : absl::OkStatus();
}

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
