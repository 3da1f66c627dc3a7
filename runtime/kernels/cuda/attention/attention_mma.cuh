#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "runtime/kernels/cuda/attention/attention_types.h"
#include "runtime/kernels/cuda/attention/kv_stage.cuh"
#include "runtime/kernels/cuda/device/ptx.cuh"

// Attention of 16 rows, or a few times 16, over pages in shared memory, by one
// warp on tensor cores (after FlashAttention-2, Dao 2023, algorithm 1, with
// pages for tiles). It takes head sizes that are multiples of 8, and all
// formats but float32.
//
// Scores are queries times K, 32 positions at a time: four tiles of 8 columns.
// Which position a column stands for is up to the kernel, and so is the order
// in which a head's elements are summed: for the quantized formats both are
// chosen so that a lane finds its codes in whole words. Codes become halves in
// registers, code * scale + minimum rounded once.

namespace sluice {

// True if a device of this generation has use for the kernel: bfloat16 is
// multiplied as such where there are units for that, and as half elsewhere.
template <KvFormat kFormat, MmaType kType>
constexpr bool kMmaRunsHere =
#if defined(__CUDACC__) && defined(__CUDA_ARCH__)
    kFormat != KvFormat::kBFloat16 ||
    (kType == MmaType::kBFloat16) == (__CUDA_ARCH__ >= 800);
#else
    true;
#endif

// A tile of kRowTiles times 16 rows; heads of at most kMaxDim elements, a
// multiple of 32 (of 16 in formats of 16 bits): of just so many with kWhole,
// which leaves the compiler free to load ahead. With kExact, queries and
// weights are taken as the sum of two 16-bit numbers each: twice the products,
// and errors as small as float32 sums leave.
template <KvFormat kFormat, MmaType kType, int kMaxDim, bool kWhole,
          int kRowTiles, bool kExact>
struct MmaTile {
  static_assert(kMaxDim % (IsQuantized(kFormat) ? 32 : 16) == 0);
  static_assert(kFormat == KvFormat::kBFloat16 || kType == MmaType::kHalf);
  // True if elements are bfloat16 that are multiplied as half.
  static constexpr bool kConverts =
      kFormat == KvFormat::kBFloat16 && kType == MmaType::kHalf;
  static constexpr int kRows = 16 * kRowTiles;
  // Elements from row to row of a query in shared memory: 8 rows fall on
  // different banks.
  static constexpr int kQueryStride = kMaxDim + 8;

  float max[kRowTiles][2];
  float sum[kRowTiles][2];  // this lane's part
  float acc[kRowTiles][kMaxDim / 8][4];

  __device__ static __forceinline__ int HeadDim(const KvBlock& block) {
    return kWhole ? kMaxDim : block.head_dim;
  }

  __device__ static __forceinline__ int RowBytes(const KvBlock& block) {
    if constexpr (!kWhole) return block.v_row_bytes;
    return kFormat == KvFormat::kInt4 ? kMaxDim / 2 : kMaxDim;
  }

  __device__ __forceinline__ void Reset() {
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
      max[m][0] = max[m][1] = -INFINITY;
      sum[m][0] = sum[m][1] = 0;
#pragma unroll
      for (int n = 0; n < kMaxDim / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) acc[m][n][i] = 0;
      }
    }
  }

  // Returns the place of element d of a query in its row. Pairs stay together.
  __device__ static __forceinline__ int QueryPlace(int d) {
    if constexpr (!IsQuantized(kFormat)) return d;
    const int e = d % 16;
    return d - e + e / 4 * 2 + (e & 1) + (e & 2) * 4;
  }

  // Writes a row's query, times `scale`, and zeros up to the next multiple of
  // 16 elements; nothing but zeros if `query` is null. All lanes of a warp call
  // it. The second part of what is exact lies `low_offset` elements behind the
  // first.
  __device__ static __forceinline__ void StoreQuery(const float* query,
                                                    float scale,
                                                    const KvBlock& block,
                                                    int lane, int low_offset,
                                                    unsigned short* row) {
    const int head_dim = HeadDim(block);
#pragma unroll
    for (int first = 0; first < kMaxDim; first += 64) {
      const int d = first + 2 * lane;
      if (d >= (head_dim + 15) / 16 * 16) continue;
      float2 x = make_float2(0, 0);
      if (query != nullptr && d < head_dim) {
        x = *reinterpret_cast<const float2*>(query + d);
        x.x *= scale;
        x.y *= scale;
      }
      const uint32_t high = Pack<kType>(x.x, x.y);
      *reinterpret_cast<uint32_t*>(row + QueryPlace(d)) = high;
      if constexpr (kExact) {
        const float2 rounded = Unpack<kType>(high);
        *reinterpret_cast<uint32_t*>(row + low_offset + QueryPlace(d)) =
            Pack<kType>(x.x - rounded.x, x.y - rounded.y);
      }
    }
  }

  // Returns the position in a page that column `col` of tile n stands for.
  __device__ static __forceinline__ int PositionOf(int n, int col) {
    if constexpr (!IsQuantized(kFormat)) return 8 * n + col;
    return 2 * col + (n & 1) + 16 * (n >> 1);
  }

  // Returns the element that column `col` of tile n of the result stands for.
  __device__ static __forceinline__ int ElementOf(int n, int col) {
    if constexpr (!IsQuantized(kFormat)) return 8 * n + col;
    return n / 4 * 32 + 4 * col + n % 4;
  }

  // Computes a page's scores. `query` is [kRows][kQueryStride], 0 from head_dim
  // to the next multiple of 16.
  __device__ __forceinline__ static void Scores(const std::byte* stage,
                                                const KvBlock& block,
                                                const unsigned short* query,
                                                int low_offset, int lane,
                                                float (&s)[kRowTiles][4][4]) {
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int n = 0; n < 4; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) s[m][n][i] = 0;
      }
    }
    const SharedAddress row =
        SharedAddressOf(query + (lane % 16) * kQueryStride + lane / 16 * 8);
    uint32_t scales[4], minima[4];
#pragma unroll
    for (int step = 0; step < kMaxDim / 16; ++step) {
      if (step * 16 >= HeadDim(block)) break;
      uint32_t k[4][2];
      if constexpr (IsQuantized(kFormat)) {
        if (step % 4 == 0) {
          LoadKScales(stage, block, step / 4, lane, scales, minima);
        }
        LoadCodesOfK(stage, block, step, lane, scales, minima, k);
      } else {
        LoadElementsOfK(stage, block, step, lane, k);
      }
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
        uint32_t q[4];
        LoadMatrices<false>(row + 2 * (m * 16 * kQueryStride + step * 16), q);
#pragma unroll
        for (int n = 0; n < 4; ++n) Mma<kType>(s[m][n], q, k[n][0], k[n][1]);
        if constexpr (kExact) {
          LoadMatrices<false>(
              row + 2 * (low_offset + m * 16 * kQueryStride + step * 16), q);
#pragma unroll
          for (int n = 0; n < 4; ++n) Mma<kType>(s[m][n], q, k[n][0], k[n][1]);
        }
      }
    }
  }

  // Takes a page's scores into the running maxima and sums (Milakov and
  // Gimelshein 2018, algorithm 3), and leaves the weights in s. Scores of
  // positions that a row does not see are minus infinity.
  __device__ __forceinline__ void Weigh(float (&s)[kRowTiles][4][4]) {
    float top[kRowTiles][2];
    bool grows = false;
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        // A score that is no number has no weight.
        float x = max[m][h];
#pragma unroll
        for (int n = 0; n < 4; ++n) {
#pragma unroll
          for (int e = 2 * h; e < 2 * h + 2; ++e) {
            s[m][n][e] = fmaxf(s[m][n][e], -INFINITY);
            x = fmaxf(x, s[m][n][e]);
          }
        }
        x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, 1));
        x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, 2));
        top[m][h] = x;
        grows |= x > max[m][h];
      }
    }
    if (__any_sync(kAllLanes, grows)) {
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const float factor =
              top[m][h] > max[m][h] ? Exp2(max[m][h] - top[m][h]) : 1.0f;
          max[m][h] = top[m][h];
          sum[m][h] *= factor;
#pragma unroll
          for (int n = 0; n < kMaxDim / 8; ++n) {
            acc[m][n][2 * h] *= factor;
            acc[m][n][2 * h + 1] *= factor;
          }
        }
      }
    }
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float shift = max[m][h] == -INFINITY ? 0.0f : max[m][h];
#pragma unroll
        for (int n = 0; n < 4; ++n) {
#pragma unroll
          for (int e = 2 * h; e < 2 * h + 2; ++e) {
            s[m][n][e] = Exp2(s[m][n][e] - shift);
            sum[m][h] += s[m][n][e];
          }
        }
      }
    }
  }

  // Adds the page's V by weights s.
  __device__ __forceinline__ void AddValues(const std::byte* stage,
                                            const KvBlock& block, int lane,
                                            const float (&s)[kRowTiles][4][4]) {
    // Scores as a sum lie in the registers just as weights on the left do.
    uint32_t high[kRowTiles][2][4], low[kExact ? kRowTiles : 1][2][4];
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float x = s[m][2 * j + i / 2][i % 2 * 2];
          const float y = s[m][2 * j + i / 2][i % 2 * 2 + 1];
          high[m][j][i] = Pack<kType>(x, y);
          if constexpr (kExact) {
            const float2 rounded = Unpack<kType>(high[m][j][i]);
            low[m][j][i] = Pack<kType>(x - rounded.x, y - rounded.y);
          }
        }
      }
    }
    const int shift = VShift<kFormat>(HeadDim(block));
    if constexpr (IsQuantized(kFormat)) {
      uint32_t scales[2][2], minima[2][2];
#pragma unroll
      for (int c = 0; c < kMaxDim / 32; ++c) {
        if (c * 32 >= HeadDim(block)) break;
        if (c % 2 == 0) {
          LoadVScales(stage, block, c / 2, lane, scales, minima);
        }
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          uint32_t v[4][2];
          LoadCodesOfV(stage, block, shift, c, j, lane, scales[j], minima[j],
                       v);
#pragma unroll
          for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
            for (int n = 0; n < 4; ++n) {
              Mma<kType>(acc[m][4 * c + n], high[m][j], v[n][0], v[n][1]);
              if constexpr (kExact) {
                Mma<kType>(acc[m][4 * c + n], low[m][j], v[n][0], v[n][1]);
              }
            }
          }
        }
      }
    } else {
#pragma unroll
      for (int n = 0; n < kMaxDim / 8; n += 2) {
        if (n * 8 >= HeadDim(block)) break;
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          uint32_t v[4];
          LoadMatrices<true>(ElementsOfV(stage, block, shift, n, j, lane), v);
          if constexpr (kConverts) ConvertToHalf(v);
#pragma unroll
          for (int m = 0; m < kRowTiles; ++m) {
            Mma<kType>(acc[m][n], high[m][j], v[0], v[1]);
            Mma<kType>(acc[m][n + 1], high[m][j], v[2], v[3]);
            if constexpr (kExact) {
              Mma<kType>(acc[m][n], low[m][j], v[0], v[1]);
              Mma<kType>(acc[m][n + 1], low[m][j], v[2], v[3]);
            }
          }
        }
      }
    }
  }

  // Adds up the sums of the lanes that share a row.
  __device__ __forceinline__ void Finish() {
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        sum[m][h] += __shfl_xor_sync(kAllLanes, sum[m][h], 1);
        sum[m][h] += __shfl_xor_sync(kAllLanes, sum[m][h], 2);
      }
    }
  }

 private:
  // Converts bfloat16 pairs to half, as far as half reaches.
  __device__ static __forceinline__ void ConvertToHalf(uint32_t (&x)[4]) {
#pragma unroll
    for (uint32_t& both : x) {
      const float2 pair = Unpack<MmaType::kBFloat16>(both);
      both = Pack<MmaType::kHalf>(pair.x, pair.y);
    }
  }

  // Loads elements [16 * step, + 16) of K at the page's positions.
  __device__ static __forceinline__ void LoadElementsOfK(const std::byte* stage,
                                                         const KvBlock& block,
                                                         int step, int lane,
                                                         uint32_t (&k)[4][2]) {
    // PlaceK: a row's four chunks change places by the row's number, which
    // steps do not change. Written so that nothing but the first address stays
    // in a register from page to page.
    static_assert(!IsNarrow(kFormat) || kPageTokens == 32);
    constexpr int kRowBytes = kPageTokens * 2;
    int row = lane % 16;
    if constexpr (!kWhole) row = min(row, HeadDim(block) - 1 - 16 * step);
    const SharedAddress first = SharedAddressOf(stage) + row * kRowBytes +
                                ((lane / 16) ^ (row / 2 % 4)) * 16;
    const bool half_empty = 16 * step + 8 >= HeadDim(block);
#pragma unroll
    for (int pair = 0; pair < 2; ++pair) {
      uint32_t x[4];
      LoadMatrices<true>((first ^ (pair * 32)) + 16 * step * kRowBytes, x);
      if constexpr (kConverts) ConvertToHalf(x);
      k[2 * pair][0] = x[0];
      k[2 * pair][1] = half_empty ? 0 : x[1];
      k[2 * pair + 1][0] = x[2];
      k[2 * pair + 1][1] = half_empty ? 0 : x[3];
    }
  }

  // Returns the address of the lane's row of elements [8 n, 8 n + 16) of
  // positions [16 j, 16 j + 16), n even.
  __device__ static __forceinline__ SharedAddress
  ElementsOfV(const std::byte* stage, const KvBlock& block, int shift, int n,
              int j, int lane) {
    if constexpr (kWhole && (kMaxDim == 64 || kMaxDim == 128)) {
      // PlaceV: each eight chunks of a row change places by the row's number.
      // Stages and rows begin at multiples of 128 bytes. Written so that
      // nothing but the first address stays in a register from page to page.
      const int row = lane % 16;
      const SharedAddress first = SharedAddressOf(stage + block.v) +
                                  row * kMaxDim * 2 +
                                  ((lane / 16) ^ (row % 8)) * 16;
      return (first ^ (n % 8 * 16)) + n / 8 * 128 + j * 16 * kMaxDim * 2;
    } else {
      // The last pair of tiles may be one: the second is never looked at.
      const int row_chunks = HeadDim(block) / 8;
      const int chunk =
          (16 * j + lane % 16) * row_chunks +
          (kWhole ? n + lane / 16 : min(n + lane / 16, row_chunks - 1));
      return SharedAddressOf(stage + block.v +
                             PlaceV<kFormat>(chunk, shift) * 16);
    }
  }

  // Loads K's scales and minima for the lane's position of each tile, doubled.
  __device__ static __forceinline__ void LoadKScales(const std::byte* stage,
                                                     const KvBlock& block,
                                                     int group, int lane,
                                                     uint32_t (&scales)[4],
                                                     uint32_t (&minima)[4]) {
    const std::byte* at =
        stage + block.k_scales + group * 4 * kPageTokens + lane / 4 * 4;
#pragma unroll
    for (int n = 0; n < 4; n += 2) {
      const uint32_t s =
          *reinterpret_cast<const uint32_t*>(at + n / 2 * kPageTokens);
      const uint32_t m = *reinterpret_cast<const uint32_t*>(
          at + 2 * kPageTokens + n / 2 * kPageTokens);
      scales[n] = __byte_perm(s, s, 0x1010);
      scales[n + 1] = __byte_perm(s, s, 0x3232);
      minima[n] = __byte_perm(m, m, 0x1010);
      minima[n + 1] = __byte_perm(m, m, 0x3232);
    }
  }

  __device__ static __forceinline__ void LoadCodesOfK(
      const std::byte* stage, const KvBlock& block, int step, int lane,
      const uint32_t (&scales)[4], const uint32_t (&minima)[4],
      uint32_t (&k)[4][2]) {
    const int g = lane / 4;
    // Behind the head's elements the query is 0.
    int four = 4 * step + lane % 4;
    if constexpr (!kWhole) four = min(four, HeadDim(block) / 4 - 1);
    uint32_t words[4];
    if constexpr (kFormat == KvFormat::kInt8) {
      const int chunk = four * 8 + g / 2;
      const auto first = *reinterpret_cast<const uint2*>(
          stage + PlaceK<kFormat>(chunk) * 16 + g % 2 * 8);
      const auto second = *reinterpret_cast<const uint2*>(
          stage + PlaceK<kFormat>(chunk + 4) * 16 + g % 2 * 8);
      words[0] = first.x;
      words[1] = first.y;
      words[2] = second.x;
      words[3] = second.y;
    } else {
      const int chunk = four * 4 + g / 2;
      const auto both = *reinterpret_cast<const uint2*>(
          stage + PlaceK<kFormat>(chunk) * 16 + g % 2 * 8);
      words[0] = both.x & 0x0f0f0f0fu;
      words[1] = both.y & 0x0f0f0f0fu;
      words[2] = both.x >> 4 & 0x0f0f0f0fu;
      words[3] = both.y >> 4 & 0x0f0f0f0fu;
    }
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      k[n][0] = Dequantize(__byte_perm(words[n], 0x64646464u, 0x4140),
                           scales[n], minima[n]);
      k[n][1] = Dequantize(__byte_perm(words[n], 0x64646464u, 0x4342),
                           scales[n], minima[n]);
    }
  }

  // Loads V's scales and minima for the lane's four positions of each half of
  // the page: of the first and the third, of the second and the fourth.
  __device__ static __forceinline__ void LoadVScales(const std::byte* stage,
                                                     const KvBlock& block,
                                                     int group, int lane,
                                                     uint32_t (&scales)[2][2],
                                                     uint32_t (&minima)[2][2]) {
    const std::byte* at =
        stage + block.v_scales + group * 4 * kPageTokens + lane % 4 * 8;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const auto s = *reinterpret_cast<const uint2*>(at + j * kPageTokens);
      const auto m = *reinterpret_cast<const uint2*>(at + 2 * kPageTokens +
                                                     j * kPageTokens);
      scales[j][0] = __byte_perm(s.x, s.y, 0x5410);
      scales[j][1] = __byte_perm(s.x, s.y, 0x7632);
      minima[j][0] = __byte_perm(m.x, m.y, 0x5410);
      minima[j][1] = __byte_perm(m.x, m.y, 0x7632);
    }
  }

  // Loads elements 32 c + 4 g + n, n = 0 to 3, of the lane's four positions of
  // half j of the page.
  __device__ static __forceinline__ void LoadCodesOfV(
      const std::byte* stage, const KvBlock& block, int shift, int c, int j,
      int lane, const uint32_t (&scales)[2], const uint32_t (&minima)[2],
      uint32_t (&v)[4][2]) {
    int byte, bits = 0;
    const int width = min(32, HeadDim(block) - 32 * c);
    const int element = 4 * (lane / 4) < width ? 4 * (lane / 4) : 0;
    if constexpr (kFormat == KvFormat::kInt8) {
      byte = 32 * c + element;
    } else {
      const bool high = element >= width / 2;
      byte = 16 * c + element - (high ? width / 2 : 0);
      bits = high ? 4 : 0;
    }
    const int first = (16 * j + 4 * (lane % 4)) * RowBytes(block) + byte;
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int at = first + i * RowBytes(block);
      words[i] = *reinterpret_cast<const uint32_t*>(
          stage + block.v + PlaceV<kFormat>(at >> 4, shift) * 16 + (at & 15));
      if constexpr (kFormat == KvFormat::kInt4) {
        words[i] = words[i] >> bits & 0x0f0f0f0fu;
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t front = __byte_perm(words[i], words[i + 2], 0x5140);
      const uint32_t back = __byte_perm(words[i], words[i + 2], 0x7362);
      v[0][i] = Dequantize(__byte_perm(front, 0x64646464u, 0x4140), scales[i],
                           minima[i]);
      v[1][i] = Dequantize(__byte_perm(front, 0x64646464u, 0x4342), scales[i],
                           minima[i]);
      v[2][i] = Dequantize(__byte_perm(back, 0x64646464u, 0x4140), scales[i],
                           minima[i]);
      v[3][i] = Dequantize(__byte_perm(back, 0x64646464u, 0x4342), scales[i],
                           minima[i]);
    }
  }
};

}  // namespace sluice
