#pragma once

#include <cuda_runtime.h>

#include <cstddef>

#include "runtime/kernels/cuda/attention/kv_elements.cuh"
#include "runtime/kernels/cuda/device/ptx.cuh"

// Heads' blocks of pages in shared memory, byte by byte as in KvLayout but for
// the order of 16-byte chunks: what the lanes of a warp read together, rows
// apart, is spread over the banks.

namespace sluice {

// Returns the place, in chunks, of chunk i of K's codes or elements.
template <KvFormat kFormat>
__device__ __forceinline__ int PlaceK(int i) {
  if constexpr (IsNarrow(kFormat)) return i ^ (i >> 3 & 3);
  if constexpr (kFormat == KvFormat::kInt8) return i ^ (i >> 3 & 3) << 1;
  return i ^ (i >> 3 & 1) << 1;
}

// Returns how rows of V are spread, which depends on their length.
template <KvFormat kFormat>
__device__ __forceinline__ constexpr int VShift(int head_dim) {
  if constexpr (IsNarrow(kFormat)) {
    // Eight neighbouring rows are read together.
    return head_dim >= 256 ? 5 : head_dim >= 128 ? 4 : 3;
  } else {
    // Four rows, four apart, are read together: by the chunks of four rows.
    const int chunks = head_dim / (kFormat == KvFormat::kInt8 ? 4 : 8);
    int shift = 2;
    while (2 << shift <= chunks) ++shift;
    return shift;
  }
}

// Returns the place, in chunks, of chunk i of V's codes or elements.
template <KvFormat kFormat>
__device__ __forceinline__ int PlaceV(int i, int shift) {
  if constexpr (IsNarrow(kFormat)) return i ^ (i >> shift & 7);
  if constexpr (kFormat == KvFormat::kInt8) return i ^ (i >> shift & 3) << 1;
  return i ^ (i >> shift & 3);
}

// Begins to copy a head's block from `page` to `stage`, by `threads` threads of
// which this is number `thread`; of K alone if not `values`. kAtOnce copies of
// a thread are begun together: no more than it has.
template <KvFormat kFormat, int kAtOnce>
__device__ __forceinline__ void CopyBlock(const std::byte* page,
                                          const KvBlock& block, bool values,
                                          int thread, int threads,
                                          std::byte* stage) {
  const int k_chunks = block.k_scales / 16;
#pragma unroll kAtOnce
  for (int i = thread; i < k_chunks; i += threads) {
    CopyAsync16(stage + PlaceK<kFormat>(i) * 16, page + i * 16);
  }
  if constexpr (IsQuantized(kFormat)) {
    for (int at = block.k_scales + thread * 16; at < block.v;
         at += threads * 16) {
      CopyAsync16(stage + at, page + at);
    }
  }
  if (!values) return;
  const int shift = VShift<kFormat>(block.head_dim);
  const int v_chunks = (block.v_scales - block.v) / 16;
#pragma unroll kAtOnce
  for (int i = thread; i < v_chunks; i += threads) {
    CopyAsync16(stage + block.v + PlaceV<kFormat>(i, shift) * 16,
                page + block.v + i * 16);
  }
  if constexpr (IsQuantized(kFormat)) {
    for (int at = block.v_scales + thread * 16; at < block.bytes;
         at += threads * 16) {
      CopyAsync16(stage + at, page + at);
    }
  }
}

// Makes V 0 at positions of a stage outside [first, last): memory that was
// never written may look like anything, and a weight of 0 does not hide a NaN.
template <KvFormat kFormat>
__device__ __forceinline__ void ClearV(std::byte* stage, const KvBlock& block,
                                       int first, int last, int thread,
                                       int threads) {
  if constexpr (IsQuantized(kFormat)) {
    // The scales and minima, [groups][2][kPageTokens].
    auto* halves = reinterpret_cast<unsigned short*>(stage + block.v_scales);
    for (int i = thread; i < block.groups * 2 * kPageTokens; i += threads) {
      const int slot = i % kPageTokens;
      if (slot < first || slot >= last) halves[i] = 0;
    }
  } else {
    const int shift = VShift<kFormat>(block.head_dim);
    const int row_chunks = block.v_row_bytes / 16;
    for (int i = thread; i < kPageTokens * row_chunks; i += threads) {
      const int slot = i / row_chunks;
      if (slot >= first && slot < last) continue;
      *reinterpret_cast<uint4*>(stage + block.v +
                                PlaceV<kFormat>(i, shift) * 16) =
          make_uint4(0, 0, 0, 0);
    }
  }
}

}  // namespace sluice
