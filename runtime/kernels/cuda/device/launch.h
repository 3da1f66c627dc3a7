#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "runtime/kernels/cuda/device/cuda_status.h"
#include "runtime/kernels/cuda/device/dynamic_shared.h"  // for kernels beside launches

// The way to launch kernels. The sources of kernels are compiled by nvcc, and
// by any C++ compiler against tests/cuda/emulation. Both see CUDA's own names,
// but for two things that C++ cannot have: <<<...>>> and `extern __shared__`
// (dynamic_shared.h). The first one's spelling for both is here.
//
// Kernels live in anonymous namespaces so that the emulation sees an access
// beyond a shared array (GCC's AddressSanitizer guards no inline variables).

namespace sluice {

// Dynamic shared memory that every device gives without being asked.
inline constexpr size_t kPlainSharedBytes = 48 << 10;

// Begins kernel(args...) on `stream`; the arguments are converted to the
// kernel's parameters and copied. Nothing is launched if the grid is empty.
//
// kInvalidArgument: more threads or shared memory than the device has for a
// block. What goes wrong while the kernel runs is reported by a later call.
template <typename... Parameters, typename... Args>
absl::Status Launch(void (*kernel)(Parameters...), dim3 grid, dim3 block,
                    size_t dynamic_shared_bytes, cudaStream_t stream,
                    Args&&... args) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return absl::OkStatus();
  cudaError_t error = cudaSuccess;
  if (dynamic_shared_bytes > kPlainSharedBytes) {
    error = cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                 cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 static_cast<int>(dynamic_shared_bytes));
  }
  if (error == cudaSuccess) {
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = dynamic_shared_bytes;
    config.stream = stream;
    error = cudaLaunchKernelEx(&config, kernel, std::forward<Args>(args)...);
  }
  if (error == cudaSuccess) return absl::OkStatus();
  return CudaStatus(
      error, absl::StrCat("launching ", grid.x, "x", grid.y, "x", grid.z,
                          " blocks of ", block.x, "x", block.y, "x", block.z,
                          " threads with ", dynamic_shared_bytes,
                          " bytes of shared memory"));
}

}  // namespace sluice
