#include "runtime/kernels/cuda/cuda_access.h"
#include "runtime/memory/device.h"

namespace sluice {
namespace {

absl::Status Absent() {
  return absl::UnimplementedError(
      "this build of Sluice is without CUDA, and can't use a GPU: compute with "
      "--device cpu, or build where the CUDA Toolkit is");
}

}  // namespace

absl::StatusOr<GpuFacts> ReadGpuFacts(int ordinal) { return Absent(); }

absl::StatusOr<uint64_t> FreeGpuMemory(int ordinal) { return Absent(); }

absl::StatusOr<std::unique_ptr<Device>> CreateCudaDevice(
    const CudaDeviceOptions& options) {
  return Absent();
}

}  // namespace sluice
