#pragma once

#include <cstddef>
#include <cstdint>

namespace sluice {

// The limits that the kernels of a GPU keep to, as far as their work space
// depends on it. By itself, so that code for devices includes little else.
struct GpuLimits {
  // The max number of processors that work is cut up for.
  static constexpr int32_t kMaxProcessors = 256;
  // The blocks that each processor should get at least, so that none waits long
  // for the last ones: two at a time, twice.
  static constexpr int32_t kBlocksPerProcessor = 4;
  // Rows of a GEMM with quantized weights that one kernel takes; pairs of
  // inputs that each of its splits has at least.
  static constexpr int32_t kFewRows = 16;
  static constexpr int32_t kMinPairs = 256;
  // KV pages that each split of a sequence has: for each warp at least, and at
  // most, as more leave too much to whoever has the last one.
  static constexpr int32_t kMinSplitPages = 2;
  static constexpr int32_t kMaxSplitPages = 128;
  // Work space beyond this makes nothing faster. For GEMMs, it is what NVIDIA
  // recommends for Hopper; and for each result no more than the partial sums
  // that an algorithm could want.
  static constexpr size_t kMaxGemms = size_t{32} << 20;
  static constexpr size_t kMaxSplits = 16;
  static constexpr size_t kMaxAttention = size_t{16} << 20;
  // Full panels of a quantized matrix that are multiplied with at a time:
  // enough columns to keep a device busy.
  static constexpr size_t kMaxDequantized = size_t{64} << 20;
  // Parts that the ring of uploads is filled by.
  static constexpr int kRingParts = 4;
  static constexpr size_t kUploadAlignment = 256;
  // Sizes of AttentionSegment, KvRun, RowSample and TokenSample.
  static constexpr size_t kSegmentBytes = 24;
  static constexpr size_t kRunBytes = 12;
  static constexpr size_t kRowSampleBytes = 40;
  static constexpr size_t kTokenSampleBytes = 8;
};

}  // namespace sluice
