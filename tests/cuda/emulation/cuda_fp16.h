#pragma once

#include <cstdint>

#include "common/float16.h"
#include "tests/cuda/emulation/vector_types.h"

// This header stands in for CUDA's <cuda_fp16.h>, with what the kernels use of
// it. Arithmetic is done in float.

struct alignas(2) __half_raw {
  uint16_t x;
};

struct alignas(2) __half {
  __half() = default;
  __half(const __half_raw& raw) : bits(raw.x) {}
  __half(float x) : bits(sluice::FloatToFloat16(x)) {}
  operator float() const { return sluice::Float16ToFloat(bits); }
  operator __half_raw() const { return {bits}; }

  uint16_t bits;
};
using half = __half;

struct alignas(4) __half2 {
  __half x, y;
};
using half2 = __half2;

inline float __half2float(__half x) { return static_cast<float>(x); }
inline __half __float2half(float x) { return __half(x); }
inline __half __float2half_rn(float x) { return __half(x); }
inline __half __ushort_as_half(unsigned short bits) {
  return __half(__half_raw{bits});
}
inline unsigned short __half_as_ushort(__half x) { return x.bits; }
inline __half2 __halves2half2(__half x, __half y) { return {x, y}; }
inline __half2 __floats2half2_rn(float x, float y) {
  return {__half(x), __half(y)};
}
inline __half2 __float22half2_rn(float2 x) {
  return __floats2half2_rn(x.x, x.y);
}
inline float2 __half22float2(__half2 x) {
  return {__half2float(x.x), __half2float(x.y)};
}
inline __half __low2half(__half2 x) { return x.x; }
inline __half __high2half(__half2 x) { return x.y; }
