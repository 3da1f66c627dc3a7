#pragma once

#include <cuda_runtime.h>

#include <cfloat>
#include <cstdint>

#include "runtime/kernels/cuda/attention/attention_types.h"
#include "runtime/kernels/cuda/attention/kv_elements.cuh"
#include "runtime/kernels/cuda/device/ptx.cuh"

// Attention of a few rows over pages in float32 arithmetic, by one warp, in any
// format and for any head size: what float32 computes with, and what is left of
// the other formats.

namespace sluice {

// Stores an element of a result in its type.
__device__ __forceinline__ void StoreOut(const AttentionArgs& args,
                                         int64_t index, float x) {
  switch (args.out_type) {
    case DType::kFloat32:
      static_cast<float*>(args.out)[index] = x;
      break;
    case DType::kBFloat16:
      static_cast<__nv_bfloat16*>(args.out)[index] = __float2bfloat16_rn(x);
      break;
    case DType::kFloat16:
      static_cast<__half*>(args.out)[index] = __float2half_rn(x);
      break;
  }
}

// Caps a row of scores or more (AttentionArgs::cap).
template <int kCount>
__device__ __forceinline__ void CapScores(float cap, float (&s)[kCount]) {
  if (cap == 0) return;
#pragma unroll
  for (int i = 0; i < kCount; ++i) s[i] = cap * tanhf(s[i] / cap);
}
template <int kTiles>
__device__ __forceinline__ void CapScores(float cap, float (&s)[kTiles][4][4]) {
  if (cap == 0) return;
#pragma unroll
  for (int m = 0; m < kTiles; ++m) {
#pragma unroll
    for (int n = 0; n < 4; ++n) CapScores(cap, s[m][n]);
  }
}

// Returns x rounded to bfloat16, to even.
__device__ __forceinline__ float RoundToBf16(float x) {
  return __bfloat162float(__float2bfloat16_rn(x));
}

// Returns ALiBi's slope of a head (DecoderSpec::alibi_slope), times log2(e), or
// rounded to bfloat16 where distances are.
__device__ __forceinline__ float AlibiSlope(const AttentionArgs& args,
                                            int head) {
  constexpr float kLog2E = 1.44269504088896340736f;
  head += args.first_head;
  const int heads = args.alibi_heads;
  const int eighths =
      head < heads ? -8 * (head + 1) : -4 * (2 * (head - heads) + 1);
  const float slope =
      exp2f(static_cast<float>(eighths) / static_cast<float>(heads));
  return args.rounded_alibi ? RoundToBf16(slope) : kLog2E * slope;
}

// Returns what ALiBi adds to the score, times log2(e), of the position `at` for
// a row that sees positions before `end`; `slope` is its head's AlibiSlope.
__device__ __forceinline__ float AlibiBias(const AttentionArgs& args,
                                           float slope, int at, int end) {
  if (!args.rounded_alibi) return slope * static_cast<float>(at + 1 - end);
  const float there = RoundToBf16(slope * RoundToBf16(static_cast<float>(at)));
  const float own =
      RoundToBf16(slope * RoundToBf16(static_cast<float>(end - 1)));
  return args.scale * (there - own);
}

// A tile of kRows rows, for heads of at most 32 * kColumns elements. Of K, a
// lane has a position of the page; of V, and of the result, each 32nd element.
//
// K and V are read where they lie, a line of a warp's width at a time; rows
// share each read.
template <KvFormat kFormat, int kRows, int kColumns>
struct FmaTile {
  static_assert(kRows == 1 || kRows % 4 == 0);

  float sum[kRows];  // this lane's part
  float max[kRows];
  float acc[kRows][kColumns];

  __device__ void Reset() {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      sum[r] = 0;
      max[r] = -INFINITY;
#pragma unroll
      for (int c = 0; c < kColumns; ++c) acc[r][c] = 0;
    }
  }

  // Computes the scores of the lane's position of the page whose head block is
  // at `page`. `query` is [kRows][stride] in shared memory, scaled, stride a
  // multiple of 4, 0 behind head_dim.
  __device__ static void Scores(const std::byte* page, const KvBlock& block,
                                const float* query, int stride, int lane,
                                float (&s)[kRows]) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) s[r] = 0;
    const int fours = (block.head_dim + 3) / 4;
    ScaleAndMinimum scale{1, 0};
#pragma unroll 4
    for (int four = 0; four < fours; ++four) {
      if (IsQuantized(kFormat) && four % (kKvGroup / 4) == 0) {
        scale = KScale<kFormat>(page, block, four / (kKvGroup / 4), lane);
      }
      float k[4];
      LoadK4<kFormat>(page, block, four, lane, scale, k);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const float4 q =
            *reinterpret_cast<const float4*>(query + r * stride + 4 * four);
        s[r] = fmaf(q.x, k[0], s[r]);
        s[r] = fmaf(q.y, k[1], s[r]);
        s[r] = fmaf(q.z, k[2], s[r]);
        s[r] = fmaf(q.w, k[3], s[r]);
      }
    }
  }

  // Takes a page's scores, minus infinity where a row does not look, and its V
  // at positions [first, last) into the result. weights: [32][kRows] in shared
  // memory, the warp's own.
  __device__ void Add(const std::byte* page, const KvBlock& block, int first,
                      int last, int lane, float (&s)[kRows], float* weights) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      // A score that is no number has no weight.
      s[r] = fmaxf(s[r], -INFINITY);
      float top = s[r];
      for (int bits = 16; bits > 0; bits /= 2) {
        top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, bits));
      }
      if (top > max[r]) {
        const float factor = exp2f(max[r] - top);
        sum[r] *= factor;
#pragma unroll
        for (int c = 0; c < kColumns; ++c) acc[r][c] *= factor;
        max[r] = top;
      }
      const float weight = max[r] == -INFINITY ? 0.0f : exp2f(s[r] - max[r]);
      sum[r] += weight;
      weights[lane * kRows + r] = weight;
    }
    __syncwarp();
#pragma unroll 4
    for (int j = first; j < last; ++j) {
      float p[kRows];
      if constexpr (kRows == 1) {
        p[0] = weights[j];
      } else {
#pragma unroll
        for (int r = 0; r < kRows; r += 4) {
          const float4 four =
              *reinterpret_cast<const float4*>(weights + j * kRows + r);
          p[r] = four.x;
          p[r + 1] = four.y;
          p[r + 2] = four.z;
          p[r + 3] = four.w;
        }
      }
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        const int d = lane + 32 * c;
        if (d >= block.head_dim) break;
        const float v = LoadV<kFormat>(page, block, j, d);
#pragma unroll
        for (int r = 0; r < kRows; ++r) acc[r][c] = fmaf(p[r], v, acc[r][c]);
      }
    }
    __syncwarp();
  }

  // Adds up the sums of all lanes.
  __device__ void Finish() {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      for (int bits = 16; bits > 0; bits /= 2) {
        sum[r] += __shfl_xor_sync(kAllLanes, sum[r], bits);
      }
    }
  }
};

}  // namespace sluice
