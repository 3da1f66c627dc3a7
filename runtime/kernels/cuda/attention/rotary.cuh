#pragma once

#include <cuda_runtime.h>

namespace sluice {

// Rotary embedding (Su et al. 2021, equation 34, with pairs as Hugging Face
// lays them out) of a pair (a, b) = (x[i], x[i + half]). Products are rounded
// before they are added, as on the CPU: what either stores in pages is the
// same.
__device__ __forceinline__ float RotateFirst(float a, float b, float cos,
                                             float sin) {
  return __fsub_rn(__fmul_rn(a, cos), __fmul_rn(b, sin));
}
__device__ __forceinline__ float RotateSecond(float a, float b, float cos,
                                              float sin) {
  return __fadd_rn(__fmul_rn(b, cos), __fmul_rn(a, sin));
}

}  // namespace sluice
