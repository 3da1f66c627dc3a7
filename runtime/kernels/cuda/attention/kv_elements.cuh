#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "common/number_format.h"
#include "runtime/kernels/cuda/attention/attention_types.h"

// Elements of K and V from a head's block (see KvLayout), as floats.

namespace sluice {

constexpr bool IsQuantized(KvFormat format) {
  return format == KvFormat::kInt8 || format == KvFormat::kInt4;
}

// Returns whether the format's elements have 16 bits.
constexpr bool IsNarrow(KvFormat format) {
  return format == KvFormat::kBFloat16 || format == KvFormat::kFloat16;
}

template <KvFormat kFormat>
__device__ __forceinline__ float NarrowToFloat(unsigned short bits) {
  if constexpr (kFormat == KvFormat::kBFloat16) {
    return __bfloat162float(__ushort_as_bfloat16(bits));
  } else {
    return __half2float(__ushort_as_half(bits));
  }
}

struct ScaleAndMinimum {
  float scale;
  float minimum;
};

__device__ __forceinline__ float HalfAt(const std::byte* page, int offset) {
  return __half2float(__ushort_as_half(
      *reinterpret_cast<const unsigned short*>(page + offset)));
}

// Returns a group's scale and minimum; `scales` is where K's or V's begin.
__device__ __forceinline__ ScaleAndMinimum ScaleAt(const std::byte* page,
                                                   int scales, int group,
                                                   int slot) {
  const int at = scales + (group * 2 * kPageTokens + slot) * 2;
  return {HalfAt(page, at), HalfAt(page, at + kPageTokens * 2)};
}

template <KvFormat kFormat>
__device__ __forceinline__ ScaleAndMinimum KScale(const std::byte* page,
                                                  const KvBlock& block,
                                                  int group, int slot) {
  return ScaleAt(page, block.k_scales, group, slot);
}

// Loads elements [4 * four, 4 * four + 4) of the K at a position, 0 behind
// head_dim; `scale` is used by the quantized formats only.
template <KvFormat kFormat>
__device__ __forceinline__ void LoadK4(const std::byte* page,
                                       const KvBlock& block, int four, int slot,
                                       ScaleAndMinimum scale, float (&k)[4]) {
  if constexpr (IsQuantized(kFormat)) {
    uint32_t word;
    if constexpr (kFormat == KvFormat::kInt8) {
      word = *reinterpret_cast<const uint32_t*>(
          page + (four * kPageTokens + slot) * 4);
    } else {
      constexpr int kHalf = kPageTokens / 2;
      word = *reinterpret_cast<const uint32_t*>(
          page + (four * kHalf + slot % kHalf) * 4);
      word = (slot < kHalf ? word : word >> 4) & 0x0f0f0f0fu;
    }
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      k[e] = fmaf(static_cast<float>(word >> (8 * e) & 255), scale.scale,
                  scale.minimum);
    }
  } else {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int d = 4 * four + e;
      if (d >= block.head_dim) {
        k[e] = 0;
      } else if constexpr (kFormat == KvFormat::kFloat32) {
        k[e] = reinterpret_cast<const float*>(page)[d * kPageTokens + slot];
      } else {
        k[e] = NarrowToFloat<kFormat>(reinterpret_cast<const unsigned short*>(
            page)[d * kPageTokens + slot]);
      }
    }
  }
}

// Returns element d of the V at a position.
template <KvFormat kFormat>
__device__ __forceinline__ float LoadV(const std::byte* page,
                                       const KvBlock& block, int slot, int d) {
  const std::byte* row = page + block.v + slot * block.v_row_bytes;
  if constexpr (kFormat == KvFormat::kFloat32) {
    return reinterpret_cast<const float*>(row)[d];
  } else if constexpr (IsNarrow(kFormat)) {
    return NarrowToFloat<kFormat>(
        reinterpret_cast<const unsigned short*>(row)[d]);
  } else {
    const ScaleAndMinimum scale =
        ScaleAt(page, block.v_scales, d / kKvGroup, slot);
    int code;
    if constexpr (kFormat == KvFormat::kInt8) {
      code = static_cast<int>(row[d]);
    } else {
      const int part = d / 32 * 32;
      const int half = (min(32, block.head_dim - part) + 1) / 2;
      const int b = d - part;
      const int byte =
          static_cast<int>(row[part / 2 + (b < half ? b : b - half)]);
      code = b < half ? byte & 15 : byte >> 4;
    }
    return fmaf(static_cast<float>(code), scale.scale, scale.minimum);
  }
}

}  // namespace sluice
