#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <type_traits>

// Elements of activations and weights in device code: float, __half and
// __nv_bfloat16 in memory, float in registers.

namespace sluice {

__device__ __forceinline__ float ToFloat(float x) { return x; }
__device__ __forceinline__ float ToFloat(__half x) { return __half2float(x); }
__device__ __forceinline__ float ToFloat(__nv_bfloat16 x) {
  return __bfloat162float(x);
}

// Returns x rounded to nearest, ties to even.
template <typename T>
__device__ __forceinline__ T FromFloat(float x) {
  if constexpr (sizeof(T) == 4) {
    return x;
  } else if constexpr (std::is_same_v<T, __half>) {
    return __float2half_rn(x);
  } else {
    return __float2bfloat16_rn(x);
  }
}

// Neighbouring elements, read and written by one instruction if they are 16
// bytes or less; at a multiple of their size.
template <typename T, int kCount>
struct alignas(sizeof(T) * kCount) Pack {
  T v[kCount];
};

template <int kCount, typename T>
__device__ __forceinline__ void LoadFloats(const T* from, float (&to)[kCount]) {
  const auto pack = *reinterpret_cast<const Pack<T, kCount>*>(from);
#pragma unroll
  for (int i = 0; i < kCount; ++i) to[i] = ToFloat(pack.v[i]);
}

template <int kCount, typename T>
__device__ __forceinline__ void StoreFloats(const float (&from)[kCount],
                                            T* to) {
  Pack<T, kCount> pack;
#pragma unroll
  for (int i = 0; i < kCount; ++i) pack.v[i] = FromFloat<T>(from[i]);
  *reinterpret_cast<Pack<T, kCount>*>(to) = pack;
}

}  // namespace sluice
