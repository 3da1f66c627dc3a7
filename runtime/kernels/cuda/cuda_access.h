#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

// This is all that the rest of the runtime sees of CUDA. In a build without it,
// each of these functions is kUnimplemented.

namespace sluice {

class Device;
class MemoryBudget;
class Tracer;
struct BackendOptions;
struct BackendParts;
struct DecoderSpec;

// A GPU, by its number among those that this process may use (CUDA counts only
// what CUDA_VISIBLE_DEVICES names).
struct GpuFacts {
  std::string name;           // "NVIDIA H100 80GB HBM3"
  int capability = 0;         // 90: compute capability 9.0
  uint64_t memory_bytes = 0;  // all of it
};

// Returns a GPU's facts and takes nothing of it. kFailedPrecondition, with what
// to do: there is no such GPU, or its driver or the GPU itself is too old.
absl::StatusOr<GpuFacts> ReadGpuFacts(int ordinal);
// Returns how much of a GPU's memory nobody has, beside what this process needs
// to use the GPU at all. The errors of ReadGpuFacts, and kResourceExhausted.
absl::StatusOr<uint64_t> FreeGpuMemory(int ordinal);

// The options of a CudaDevice (cuda_device.h).
struct CudaDeviceOptions {
  int ordinal = 0;
  MemoryBudget* budget = nullptr;  // outlives the device
  Tracer* tracer = nullptr;        // may be null; gets rows "h2d" and "d2h"
};
absl::StatusOr<std::unique_ptr<Device>> CreateCudaDevice(
    const CudaDeviceOptions& options);

// Makes a CudaBackend.
absl::StatusOr<BackendParts> CreateCudaBackend(const DecoderSpec& spec,
                                               const BackendOptions& options);

}  // namespace sluice
