#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace sluice {

inline float BFloat16ToFloat(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

// Exact for all values, subnormal ones, infinities and NaN included; free of
// branches, so that loops vectorize. After Maratyszcza's FP16 library.
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

}  // namespace sluice
