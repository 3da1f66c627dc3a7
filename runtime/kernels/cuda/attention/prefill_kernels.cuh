#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "runtime/kernels/cuda/attention/attention_fma.cuh"
#include "runtime/kernels/cuda/attention/attention_mma.cuh"
#include "runtime/kernels/cuda/attention/attention_types.h"
#include "runtime/kernels/cuda/device/dynamic_shared.h"

// Causal attention of several new tokens of each of some sequences, packed: a
// segment's rows (a token and a query head of one KV head each, token by token)
// are cut into tiles, one for each block, whose rows share all that is read.

namespace sluice {

// The tile that a block has.
struct PrefillBlock {
  AttentionSegment segment;
  int kv_head;
  int first_row, last_row;  // of the segment; the last one is included
  int end;                  // of the segment's positions
  int first_page, last_page;

  __device__ __forceinline__ explicit PrefillBlock(const PrefillArgs& args) {
    // Later tiles look at more positions: they go first.
    const int tile = static_cast<int>(gridDim.x - 1 - blockIdx.x);
    int low = 0, high = args.segments;
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      if (__ldg(args.tile_begin + middle) <= tile) {
        low = middle;
      } else {
        high = middle;
      }
    }
    segment = args.common.segments[low];
    kv_head = static_cast<int>(blockIdx.y);
    first_row = (tile - __ldg(args.tile_begin + low)) * args.tile_rows;
    last_row = min(segment.num_tokens * args.common.group,
                   first_row + args.tile_rows) -
               1;
    end = segment.start + segment.num_tokens;
    first_page = Begin(args.common, first_row) / kPageTokens;
    last_page = (End(args.common, last_row) + kPageTokens - 1) / kPageTokens;
  }

  // A row sees positions [Begin, End).
  __device__ __forceinline__ int End(const AttentionArgs& args, int row) const {
    return segment.start + row / args.group + 1;
  }
  __device__ __forceinline__ int Begin(const AttentionArgs& args,
                                       int row) const {
    return BeginBefore(args, End(args, row));
  }
  __device__ __forceinline__ static int BeginBefore(const AttentionArgs& args,
                                                    int end) {
    return args.window > 0 ? max(0, end - args.window) : 0;
  }
  // Returns a row's query head.
  __device__ __forceinline__ int Head(const AttentionArgs& args,
                                      int row) const {
    return kv_head * args.group + row % args.group;
  }
  __device__ __forceinline__ int64_t PackedRow(const AttentionArgs& args,
                                               int row) const {
    return segment.row + row / args.group;
  }
  // Returns a row's query, unscaled.
  __device__ __forceinline__ const float* Query(const AttentionArgs& args,
                                                int row) const {
    return args.q + PackedRow(args, row) * args.q_stride +
           Head(args, row) * args.block.head_dim;
  }
  // Returns the index of the first element of a row's result.
  __device__ __forceinline__ int64_t Out(const AttentionArgs& args,
                                         int row) const {
    return (PackedRow(args, row) * args.num_heads + Head(args, row)) *
           args.block.head_dim;
  }
};

// Computes on tensor cores; the result has 16 bits.
template <KvFormat kFormat, MmaType kType, int kMaxDim, bool kWhole,
          int kRowTiles>
__global__ void __launch_bounds__(kPrefillThreads)
    PrefillMma(const PrefillArgs args) {
  if constexpr (kMmaRunsHere<kFormat, kType>) {
    using Tile = MmaTile<kFormat, kType, kMaxDim, kWhole, kRowTiles, false>;
    SLUICE_DYNAMIC_SHARED(std::byte, shared);
    const AttentionArgs& common = args.common;
    const KvBlock& layout = common.block;
    const PrefillBlock block(args);
    const int thread = static_cast<int>(threadIdx.x);
    const int threads = static_cast<int>(blockDim.x);
    const int lane = thread % 32;
    const int warp = thread / 32;

    auto* queries = reinterpret_cast<unsigned short*>(shared);
    std::byte* stages = shared + args.tile_rows * Tile::kQueryStride * 2;
#pragma unroll 4
    for (int r = warp; r < args.tile_rows; r += threads / 32) {
      const int row = block.first_row + r;
      Tile::StoreQuery(
          row <= block.last_row ? block.Query(common, row) : nullptr,
          common.scale, layout, lane, 0, queries + r * Tile::kQueryStride);
    }

    // The warp's rows end where its first one sees to, or later: from `all_end`
    // to `warp_end`. Rows that do not exist look where the last one does.
    const int warp_row = block.first_row + warp * Tile::kRows;
    const int all_end = block.End(common, min(warp_row, block.last_row));
    const int warp_end =
        block.End(common, min(warp_row + Tile::kRows - 1, block.last_row));

    Tile tile;
    tile.Reset();
    const std::byte* head = common.kv + block.segment.kv_offset +
                            static_cast<int64_t>(block.kv_head) * layout.bytes;
    const int first_page = block.segment.first_page + block.first_page;
    const int count = block.last_page - block.first_page;
    int pages = 0;  // lane l: the number of page i + l, i a multiple of 32
    const auto stage_of = [&](int i) {
      return stages + (i & (args.stages - 1)) * layout.bytes;
    };
    const auto begin_copy = [&](int i) {
      if (i % 32 == 0) {
        pages =
            i + lane < count ? __ldg(common.pages + first_page + i + lane) : 0;
      }
      const int64_t page = __shfl_sync(kAllLanes, pages, i % 32);
      if (i < count) {
        CopyBlock<kFormat, 4>(head + page * layout.page_bytes, layout, true,
                              thread, threads, stage_of(i));
      }
      CommitCopies();
    };
    const int ahead = args.stages - 1;
    for (int i = 0; i < ahead; ++i) begin_copy(i);
    for (int i = 0; i < count; ++i) {
      if (ahead > 0) WaitCopies(ahead - 1);
      // Page i is here, and nobody looks at page i - 1 any more.
      __syncthreads();
      begin_copy(i + ahead);
      if (ahead == 0) {
        WaitCopies(0);
        __syncthreads();
      }
      std::byte* stage = stage_of(i);
      const int position = (block.first_page + i) * kPageTokens;
      if (position + kPageTokens > block.end) {
        ClearV<kFormat>(stage, layout, 0, block.end - position, thread,
                        threads);
        __syncthreads();
      }
      if (warp_row > block.last_row || position >= warp_end ||
          position + kPageTokens <=
              PrefillBlock::BeginBefore(common, all_end)) {
        continue;
      }
      float s[kRowTiles][4][4];
      Tile::Scores(stage, layout,
                   queries + warp * Tile::kRows * Tile::kQueryStride, 0, lane,
                   s);
      CapScores(common.cap, s);
      if (common.alibi_heads > 0) {
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            const int row =
                min(warp_row + 16 * m + 8 * h + lane / 4, block.last_row);
            const float slope = AlibiSlope(common, block.Head(common, row));
            const int end = block.End(common, row);
#pragma unroll
            for (int n = 0; n < 4; ++n) {
#pragma unroll
              for (int e = 2 * h; e < 2 * h + 2; ++e) {
                const int at =
                    position + Tile::PositionOf(n, lane % 4 * 2 + e % 2);
                s[m][n][e] += AlibiBias(common, slope, at, end);
              }
            }
          }
        }
      }
      // Registers are scarce: what few pages need is not kept.
      if (position + kPageTokens > all_end ||
          position < PrefillBlock::BeginBefore(common, warp_end)) {
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            const int row = warp_row + 16 * m + 8 * h + lane / 4;
            const int end = block.End(common, min(row, block.last_row));
            const int begin = PrefillBlock::BeginBefore(common, end);
#pragma unroll
            for (int n = 0; n < 4; ++n) {
#pragma unroll
              for (int e = 2 * h; e < 2 * h + 2; ++e) {
                const int at =
                    position + Tile::PositionOf(n, lane % 4 * 2 + e % 2);
                if (at < begin || at >= end) s[m][n][e] = -INFINITY;
              }
            }
          }
        }
      }
      tile.Weigh(s);
      tile.AddValues(stage, layout, lane, s);
    }
    tile.Finish();

    const bool half = common.out_type == DType::kFloat16;
    const auto pack = [half](float x, float y) {
      return half ? Pack<MmaType::kHalf>(x, y) : Pack<MmaType::kBFloat16>(x, y);
    };
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int row = warp_row + 16 * m + 8 * h + lane / 4;
        if (row > block.last_row) continue;
        auto* out = reinterpret_cast<unsigned short*>(common.out) +
                    block.Out(common, row);
        const float share = 1.0f / tile.sum[m][h];
        // Elements that lie side by side are written together.
        if constexpr (IsQuantized(kFormat)) {
#pragma unroll
          for (int n = 0; n < kMaxDim / 8; n += 4) {
#pragma unroll
            for (int e = 2 * h; e < 2 * h + 2; ++e) {
              const int d = Tile::ElementOf(n, lane % 4 * 2 + e % 2);
              if (d >= layout.head_dim) continue;
              *reinterpret_cast<uint2*>(out + d) =
                  make_uint2(pack(tile.acc[m][n][e] * share,
                                  tile.acc[m][n + 1][e] * share),
                             pack(tile.acc[m][n + 2][e] * share,
                                  tile.acc[m][n + 3][e] * share));
            }
          }
        } else {
#pragma unroll
          for (int n = 0; n < kMaxDim / 8; ++n) {
            const int d = Tile::ElementOf(n, lane % 4 * 2);
            if (d >= layout.head_dim) continue;
            *reinterpret_cast<uint32_t*>(out + d) =
                pack(tile.acc[m][n][2 * h] * share,
                     tile.acc[m][n][2 * h + 1] * share);
          }
        }
      }
    }
  }
}

// Computes in float32; a warp takes kRows rows of its block's tile.
template <KvFormat kFormat, int kRows, int kColumns>
__global__ void __launch_bounds__(kPrefillThreads)
    PrefillFma(const PrefillArgs args) {
  SLUICE_DYNAMIC_SHARED(float, shared);
  const AttentionArgs& common = args.common;
  const KvBlock& layout = common.block;
  const PrefillBlock block(args);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int warps = static_cast<int>(blockDim.x) / 32;
  const int warp_row = block.first_row + warp * kRows;
  // From here on, warps go their own ways.
  if (warp_row > block.last_row) return;
  const int stride = (layout.head_dim + 3) / 4 * 4;
  float* queries = shared + warp * kRows * stride;
  float* weights = shared + warps * kRows * stride + warp * kPageTokens * kRows;
  int begin[kRows], end[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int row = min(warp_row + r, block.last_row);
    begin[r] = block.Begin(common, row);
    end[r] = block.End(common, row);
    for (int d = lane; d < stride; d += 32) {
      queries[r * stride + d] = d < layout.head_dim
                                    ? common.scale * block.Query(common, row)[d]
                                    : 0.0f;
    }
  }
  __syncwarp();
  FmaTile<kFormat, kRows, kColumns> tile;
  tile.Reset();
  const std::byte* head = common.kv + block.segment.kv_offset +
                          static_cast<int64_t>(block.kv_head) * layout.bytes;
  const int32_t* table = common.pages + block.segment.first_page;
  for (int page = begin[0] / kPageTokens; page * kPageTokens < end[kRows - 1];
       ++page) {
    const std::byte* at =
        head + static_cast<int64_t>(__ldg(table + page)) * layout.page_bytes;
    const int position = page * kPageTokens + lane;
    float s[kRows];
    tile.Scores(at, layout, queries, stride, lane, s);
    CapScores(common.cap, s);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (common.alibi_heads > 0) {
        const int head = block.Head(common, min(warp_row + r, block.last_row));
        s[r] += AlibiBias(common, AlibiSlope(common, head), position, end[r]);
      }
      if (position < begin[r] || position >= end[r]) s[r] = -INFINITY;
    }
    tile.Add(at, layout, max(0, begin[0] - page * kPageTokens),
             min(kPageTokens, end[kRows - 1] - page * kPageTokens), lane, s,
             weights);
  }
  tile.Finish();
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int row = warp_row + r;
    if (row > block.last_row) break;
    const int64_t out = block.Out(common, row);
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const int d = lane + 32 * c;
      if (d >= layout.head_dim) continue;
      StoreOut(common, out + d, tile.acc[r][c] / tile.sum[r]);
    }
  }
}

}  // namespace sluice
