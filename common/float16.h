#pragma once

#include <bit>
#include <cstdint>

// Numbers of 16 bits, one at a time: bfloat16 and IEEE's float16. Whole rows
// are converted by runtime/quant/convert_floats.h.

namespace sluice {

inline float BFloat16ToFloat(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

// The conversion is exact for all values, subnormal ones, infinities and NaN
// included, and branch-free, so that loops vectorize. From Maratyszcza's FP16.
inline float Float16ToFloat(uint16_t bits) {
  const uint32_t w = static_cast<uint32_t>(bits) << 16;
  const uint32_t sign = w & 0x80000000u;
  const uint32_t two_w = w + w;
  const float normal =
      std::bit_cast<float>((two_w >> 4) + (0xE0u << 23)) * 0x1.0p-112f;
  const float subnormal =
      std::bit_cast<float>((two_w >> 17) | (126u << 23)) - 0.5f;
  const uint32_t magnitude = two_w < (1u << 27)
                                 ? std::bit_cast<uint32_t>(subnormal)
                                 : std::bit_cast<uint32_t>(normal);
  return std::bit_cast<float>(sign | magnitude);
}

// The type of a float16 in memory, distinct from other 16-bit integers.
struct Float16 {
  uint16_t bits;
};

// The largest finite float16.
inline constexpr float kMaxFloat16 = 65504.0f;

// Rounds to the nearest float16, ties to even; too large numbers become
// infinite, NaN stays one.
inline uint16_t FloatToFloat16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t sign = bits >> 16 & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);
  if (magnitude >= 0x47800000u) return static_cast<uint16_t>(sign | 0x7c00u);
  uint32_t half;
  if (magnitude < 0x38800000u) {
    // A subnormal result is a multiple of 2^-24, the ulp of 0.5.
    half = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) -
           std::bit_cast<uint32_t>(0.5f);
  } else {
    const uint32_t odd = magnitude >> 13 & 1;
    half = ((magnitude + 0xfffu + odd) >> 13) - (112u << 10);
  }
  return static_cast<uint16_t>(sign | half);
}

}  // namespace sluice
