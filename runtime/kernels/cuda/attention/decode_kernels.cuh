#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "runtime/kernels/cuda/attention/attention_fma.cuh"
#include "runtime/kernels/cuda/attention/attention_mma.cuh"
#include "runtime/kernels/cuda/attention/attention_types.h"
#include "runtime/kernels/cuda/device/dynamic_shared.h"

// Attention of one new token each of many sequences. A block has some query
// heads of one KV head, which share what is read, and a split of the
// sequence's pages, which its warps take in turns. What the warps found is put
// together in shared memory; what the splits found, by CombineSplits.

namespace sluice {

// The part of a sequence that a block has.
struct DecodeBlock {
  AttentionSegment segment;
  int sequence, split, splits;  // `splits`: of this sequence
  int begin, end;               // positions seen
  int first_page, last_page;    // of the split
  int kv_head, first_head, heads;

  __device__ __forceinline__ explicit DecodeBlock(const DecodeArgs& args) {
    sequence = static_cast<int>(blockIdx.x) / args.splits;
    split = static_cast<int>(blockIdx.x) % args.splits;
    segment = args.common.segments[sequence];
    end = segment.start + 1;
    begin = args.common.window > 0 ? max(0, end - args.common.window) : 0;
    const int first = begin / kPageTokens;
    const int last = (end + kPageTokens - 1) / kPageTokens;
    splits = (last - first + args.pages_per_split - 1) / args.pages_per_split;
    first_page = first + split * args.pages_per_split;
    last_page = min(last, first_page + args.pages_per_split);
    kv_head = static_cast<int>(blockIdx.y) / args.chunks;
    const int chunk = static_cast<int>(blockIdx.y) % args.chunks;
    first_head = kv_head * args.common.group + chunk * args.chunk_heads;
    heads = min(args.chunk_heads, args.common.group - chunk * args.chunk_heads);
  }

  // Returns the KV head's block in page number 0.
  __device__ __forceinline__ const std::byte* Head(
      const AttentionArgs& args) const {
    return args.kv + segment.kv_offset +
           static_cast<int64_t>(kv_head) * args.block.bytes;
  }
  // Returns the query of head first_head + r, unscaled.
  __device__ __forceinline__ const float* Query(const AttentionArgs& args,
                                                int r) const {
    return args.q + segment.row * args.q_stride +
           (first_head + r) * args.block.head_dim;
  }
};

// Puts together what the warps found: acc [warps][kRows][head_dim] and state
// [warps][kRows]{largest score, sum of weights}, in shared memory.
template <int kRows>
__device__ __forceinline__ void CombineWarps(const DecodeArgs& args,
                                             const DecodeBlock& block,
                                             const float* acc,
                                             const float* state) {
  const int warps = static_cast<int>(blockDim.x) / 32;
  const int head_dim = args.common.block.head_dim;
  for (int i = static_cast<int>(threadIdx.x); i < block.heads * head_dim;
       i += static_cast<int>(blockDim.x)) {
    const int r = i / head_dim;
    const int d = i % head_dim;
    float top = -INFINITY;
    for (int w = 0; w < warps; ++w) {
      top = fmaxf(top, state[(w * kRows + r) * 2]);
    }
    float value = 0, sum = 0;
    for (int w = 0; w < warps; ++w) {
      const float* part = state + (w * kRows + r) * 2;
      if (part[0] == -INFINITY) continue;
      const float factor = Exp2(part[0] - top);
      value += factor * acc[(w * kRows + r) * head_dim + d];
      sum += factor * part[1];
    }
    const int64_t head = block.first_head + r;
    if (block.splits == 1) {
      StoreOut(
          args.common,
          (static_cast<int64_t>(block.segment.row) * args.common.num_heads +
           head) * head_dim +
              d,
          value / sum);
      continue;
    }
    float* out =
        args.partials +
        ((static_cast<int64_t>(block.sequence) * args.common.num_heads + head) *
             args.splits +
         block.split) *
            (head_dim + 2);
    out[d] = value;
    if (d == 0) {
      out[head_dim] = top;
      out[head_dim + 1] = sum;
    }
  }
}

// Adds ALiBi's distances to a page's scores, if there are any: of a tile, and
// of the lane's position.
template <typename Tile>
__device__ __forceinline__ void AddDistances(const AttentionArgs& args,
                                             const DecodeBlock& block, int page,
                                             int lane, float (&s)[1][4][4]) {
  if (args.alibi_heads == 0) return;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float slope = AlibiSlope(args, block.first_head + lane / 4 + 8 * h);
#pragma unroll
    for (int n = 0; n < 4; ++n) {
#pragma unroll
      for (int e = 2 * h; e < 2 * h + 2; ++e) {
        const int position =
            page * kPageTokens + Tile::PositionOf(n, lane % 4 * 2 + e % 2);
        s[0][n][e] += AlibiBias(args, slope, position, block.end);
      }
    }
  }
}
template <int kRows>
__device__ __forceinline__ void AddDistances(const AttentionArgs& args,
                                             const DecodeBlock& block, int page,
                                             int lane, float (&s)[kRows]) {
  if (args.alibi_heads == 0) return;
  const int position = page * kPageTokens + lane;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    s[r] += AlibiBias(args, AlibiSlope(args, block.first_head + r), position,
                      block.end);
  }
}

// Calls visit(page, stage) for each of a warp's pages of a split, with the next
// ones on their way to shared memory; page counts from the sequence's first.
template <KvFormat kFormat, typename Visit>
__device__ __forceinline__ void ForEachStagedPage(const DecodeArgs& args,
                                                  const DecodeBlock& block,
                                                  bool values,
                                                  std::byte* stages,
                                                  const Visit& visit) {
  const KvBlock& layout = args.common.block;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int warps = static_cast<int>(blockDim.x) / 32;
  const int first = block.first_page + warp;
  const int count = max(0, (block.last_page - first + warps - 1) / warps);
  const int stage_bytes = values ? layout.bytes : layout.v;
  const std::byte* head = block.Head(args.common);
  const int32_t* table = args.common.pages + block.segment.first_page + first;
  int pages = 0;  // lane l: the number of page i + l, i a multiple of 32
  const auto begin_copy = [&](int i) {
    if (i % 32 == 0) {
      pages = i + lane < count ? __ldg(table + (i + lane) * warps) : 0;
    }
    const int64_t page = __shfl_sync(kAllLanes, pages, i % 32);
    if (i < count) {
      CopyBlock<kFormat, 8>(head + page * layout.page_bytes, layout, values,
                            lane, 32, stages + i % args.stages * stage_bytes);
    }
    CommitCopies();
  };
  const int ahead = args.stages - 1;
  for (int i = 0; i < ahead; ++i) begin_copy(i);
  for (int i = 0; i < count; ++i) {
    if (ahead > 0) WaitCopies(ahead - 1);
    __syncwarp();
    begin_copy(i + ahead);
    if (ahead == 0) {
      WaitCopies(0);
      __syncwarp();
    }
    visit(first + i * warps, stages + i % args.stages * stage_bytes);
  }
}

// Bytes of the queries in shared memory.
template <typename Tile>
constexpr int kQueryBytes = 2 * Tile::kRows* Tile::kQueryStride * 2;

// Writes the block's queries to shared memory, for all threads.
template <typename Tile>
__device__ __forceinline__ void StoreQueries(const DecodeArgs& args,
                                             const DecodeBlock& block,
                                             unsigned short* queries) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warps = static_cast<int>(blockDim.x) / 32;
  for (int r = static_cast<int>(threadIdx.x) / 32; r < Tile::kRows;
       r += warps) {
    Tile::StoreQuery(r < block.heads ? block.Query(args.common, r) : nullptr,
                     args.common.scale, args.common.block, lane,
                     Tile::kRows * Tile::kQueryStride,
                     queries + r * Tile::kQueryStride);
  }
  __syncthreads();
}

template <KvFormat kFormat, MmaType kType, int kMaxDim, bool kWhole>
__global__ void __launch_bounds__(kDecodeThreads, 2)
    DecodeMma(const DecodeArgs args) {
  if constexpr (kMmaRunsHere<kFormat, kType>) {
    using Tile = MmaTile<kFormat, kType, kMaxDim, kWhole, 1, true>;
    SLUICE_DYNAMIC_SHARED(std::byte, shared);
    const DecodeBlock block(args);
    if (block.split >= block.splits) return;
    const KvBlock& layout = args.common.block;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const int warps = static_cast<int>(blockDim.x) / 32;
    auto* queries = reinterpret_cast<unsigned short*>(shared);
    StoreQueries<Tile>(args, block, queries);
    std::byte* stages = shared + kQueryBytes<Tile>;
    Tile tile;
    tile.Reset();
    ForEachStagedPage<kFormat>(
        args, block, true, stages + warp * args.stages * layout.bytes,
        [&](int page, std::byte* stage) {
          const int first = max(0, block.begin - page * kPageTokens);
          const int last = min(kPageTokens, block.end - page * kPageTokens);
          const bool whole = first == 0 && last == kPageTokens;
          if (!whole) {
            ClearV<kFormat>(stage, layout, first, last, lane, 32);
            __syncwarp();
          }
          float s[1][4][4];
          Tile::Scores(stage, layout, queries, Tile::kRows * Tile::kQueryStride,
                       lane, s);
          CapScores(args.common.cap, s);
          AddDistances<Tile>(args.common, block, page, lane, s);
          if (!whole) {
#pragma unroll
            for (int n = 0; n < 4; ++n) {
#pragma unroll
              for (int i = 0; i < 4; ++i) {
                const int slot = Tile::PositionOf(n, lane % 4 * 2 + i % 2);
                if (slot < first || slot >= last) s[0][n][i] = -INFINITY;
              }
            }
          }
          tile.Weigh(s);
          tile.AddValues(stage, layout, lane, s);
        });
    tile.Finish();
    WaitCopies(0);
    __syncthreads();
    float* acc = reinterpret_cast<float*>(stages);
    float* state = acc + warps * Tile::kRows * layout.head_dim;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int r = warp * Tile::kRows + lane / 4 + 8 * h;
#pragma unroll
      for (int n = 0; n < kMaxDim / 8; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int d = Tile::ElementOf(n, lane % 4 * 2 + e);
          if (d < layout.head_dim) {
            acc[r * layout.head_dim + d] = tile.acc[0][n][2 * h + e];
          }
        }
      }
      if (lane % 4 == 0) {
        state[r * 2] = tile.max[0][h];
        state[r * 2 + 1] = tile.sum[0][h];
      }
    }
    __syncthreads();
    CombineWarps<Tile::kRows>(args, block, acc, state);
  }
}

// Computes the scores alone.
template <KvFormat kFormat, MmaType kType, int kMaxDim, bool kWhole>
__global__ void __launch_bounds__(kDecodeThreads)
    ScoreMma(const DecodeArgs args) {
  if constexpr (kMmaRunsHere<kFormat, kType>) {
    using Tile = MmaTile<kFormat, kType, kMaxDim, kWhole, 1, true>;
    SLUICE_DYNAMIC_SHARED(std::byte, shared);
    const DecodeBlock block(args);
    if (block.split >= block.splits) return;
    const KvBlock& layout = args.common.block;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int warp = static_cast<int>(threadIdx.x) / 32;
    auto* queries = reinterpret_cast<unsigned short*>(shared);
    StoreQueries<Tile>(args, block, queries);
    float* out = args.scores +
                 (static_cast<int64_t>(block.sequence) * args.common.num_heads +
                  block.first_head) *
                     args.score_stride;
    ForEachStagedPage<kFormat>(
        args, block, false,
        shared + kQueryBytes<Tile> + warp * args.stages * layout.v,
        [&](int page, std::byte* stage) {
          float s[1][4][4];
          Tile::Scores(stage, layout, queries, Tile::kRows * Tile::kQueryStride,
                       lane, s);
          CapScores(args.common.cap, s);
          AddDistances<Tile>(args.common, block, page, lane, s);
#pragma unroll
          for (int n = 0; n < 4; ++n) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              const int r = lane / 4 + i / 2 * 8;
              const int position = page * kPageTokens +
                                   Tile::PositionOf(n, lane % 4 * 2 + i % 2);
              if (r < block.heads && position >= block.begin &&
                  position < block.end) {
                out[r * args.score_stride + position - block.begin] =
                    s[0][n][i];
              }
            }
          }
        });
  }
}

// Floats from row to row of a query in shared memory.
__device__ __forceinline__ int FmaQueryStride(int head_dim) {
  return (head_dim + 3) / 4 * 4;
}

template <int kRows>
__device__ __forceinline__ void StoreFmaQueries(const DecodeArgs& args,
                                                const DecodeBlock& block,
                                                float* queries) {
  const int head_dim = args.common.block.head_dim;
  const int stride = FmaQueryStride(head_dim);
  for (int i = static_cast<int>(threadIdx.x); i < kRows * stride;
       i += static_cast<int>(blockDim.x)) {
    const int r = i / stride;
    const int d = i % stride;
    queries[i] = r < block.heads && d < head_dim
                     ? args.common.scale * block.Query(args.common, r)[d]
                     : 0.0f;
  }
  __syncthreads();
}

template <KvFormat kFormat, int kRows, int kColumns>
__global__ void __launch_bounds__(kDecodeThreads)
    DecodeFma(const DecodeArgs args) {
  SLUICE_DYNAMIC_SHARED(float, shared);
  const DecodeBlock block(args);
  if (block.split >= block.splits) return;
  const KvBlock& layout = args.common.block;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int warps = static_cast<int>(blockDim.x) / 32;
  const int stride = FmaQueryStride(layout.head_dim);
  float* queries = shared;
  float* weights = queries + kRows * stride;
  float* acc = weights + warps * kPageTokens * kRows;
  float* state = acc + warps * kRows * layout.head_dim;
  StoreFmaQueries<kRows>(args, block, queries);
  weights += warp * kPageTokens * kRows;
  FmaTile<kFormat, kRows, kColumns> tile;
  tile.Reset();
  const std::byte* head = block.Head(args.common);
  const int32_t* table = args.common.pages + block.segment.first_page;
  for (int page = block.first_page + warp; page < block.last_page;
       page += warps) {
    const std::byte* at =
        head + static_cast<int64_t>(__ldg(table + page)) * layout.page_bytes;
    const int first = max(0, block.begin - page * kPageTokens);
    const int last = min(kPageTokens, block.end - page * kPageTokens);
    float s[kRows];
    tile.Scores(at, layout, queries, stride, lane, s);
    CapScores(args.common.cap, s);
    AddDistances(args.common, block, page, lane, s);
    if (lane < first || lane >= last) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) s[r] = -INFINITY;
    }
    tile.Add(at, layout, first, last, lane, s, weights);
  }
  tile.Finish();
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int row = warp * kRows + r;
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const int d = lane + 32 * c;
      if (d < layout.head_dim) acc[row * layout.head_dim + d] = tile.acc[r][c];
    }
    if (lane == 0) {
      state[row * 2] = tile.max[r];
      state[row * 2 + 1] = tile.sum[r];
    }
  }
  __syncthreads();
  CombineWarps<kRows>(args, block, acc, state);
}

template <KvFormat kFormat, int kRows>
__global__ void __launch_bounds__(kDecodeThreads)
    ScoreFma(const DecodeArgs args) {
  SLUICE_DYNAMIC_SHARED(float, queries);
  const DecodeBlock block(args);
  if (block.split >= block.splits) return;
  const KvBlock& layout = args.common.block;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int warps = static_cast<int>(blockDim.x) / 32;
  StoreFmaQueries<kRows>(args, block, queries);
  float* out = args.scores +
               (static_cast<int64_t>(block.sequence) * args.common.num_heads +
                block.first_head) *
                   args.score_stride;
  const std::byte* head = block.Head(args.common);
  const int32_t* table = args.common.pages + block.segment.first_page;
  for (int page = block.first_page + warp; page < block.last_page;
       page += warps) {
    float s[kRows];
    FmaTile<kFormat, kRows, 1>::Scores(
        head + static_cast<int64_t>(__ldg(table + page)) * layout.page_bytes,
        layout, queries, FmaQueryStride(layout.head_dim), lane, s);
    CapScores(args.common.cap, s);
    AddDistances(args.common, block, page, lane, s);
    const int position = page * kPageTokens + lane;
    if (position < block.begin || position >= block.end) continue;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (r < block.heads) {
        out[r * args.score_stride + position - block.begin] = s[r];
      }
    }
  }
}

}  // namespace sluice
