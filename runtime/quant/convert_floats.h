#pragma once

#include <cstdint>

#include "common/types.h"

// Rows of float32 to and from narrower floats, by Highway for whatever vectors
// the processor has. A bfloat16 or float16 is held as uint16_t.

namespace sluice {

void FloatToBf16(const float* x, int32_t n, uint16_t* out);
void Bf16ToFloat(const uint16_t* x, int32_t n, float* out);

// To and from a dtype, of any number of elements: copied, or rounded to nearest
// even.
void ConvertFloats(const float* x, int64_t n, DType dtype, void* out);
void ToFloats(const void* x, int64_t n, DType dtype, float* out);

// Rounds to nearest even; NaN stays NaN.
inline uint16_t RoundToBf16(float x) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fc0;
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

}  // namespace sluice
