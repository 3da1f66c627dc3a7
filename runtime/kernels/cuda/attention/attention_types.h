#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/kernels/cuda/device/mma_type.h"
#include "runtime/kv/kv_layout.h"

// Types that attention's kernels and those who launch them share.

namespace sluice {

// The largest head that attention on the device takes.
inline constexpr int32_t kMaxHeadDim = 256;

// A sequence's part in a call, in device memory: packed rows [row, row +
// num_tokens) are positions [start, start + num_tokens).
struct AttentionSegment {
  // The bytes from where the layer's pages begin to page number 0, so that the
  // segments of a step are the same for all layers. A multiple of 16.
  int64_t kv_offset = 0;
  // The place of its pages' numbers in the table of page numbers.
  int32_t first_page = 0;
  int32_t row = 0;
  int32_t start = 0;
  int32_t num_tokens = 0;
};

// A KV head's block in a page (see KvLayout), as byte offsets that fit into 32
// bits.
struct KvBlock {
  int32_t head_dim = 0;
  int32_t groups = 0;
  int32_t k_scales = 0;
  int32_t v = 0;
  int32_t v_row_bytes = 0;
  int32_t v_scales = 0;
  int32_t bytes = 0;
  int64_t page_bytes = 0;  // from page to page
};

inline KvBlock MakeKvBlock(const KvLayout& layout) {
  KvBlock block;
  block.head_dim = layout.head_dim;
  block.groups = layout.groups();
  block.k_scales = layout.quantized()
                       ? static_cast<int32_t>(layout.k_scales_offset())
                       : static_cast<int32_t>(layout.v_offset());
  block.v = static_cast<int32_t>(layout.v_offset());
  block.v_row_bytes = static_cast<int32_t>(layout.v_row_bytes());
  block.v_scales = static_cast<int32_t>(layout.v_scales_offset());
  block.bytes = static_cast<int32_t>(layout.head_bytes());
  block.page_bytes = static_cast<int64_t>(layout.layer_page_bytes());
  return block;
}

// Threads of a block, at most.
inline constexpr int kDecodeThreads = 128;
inline constexpr int kPrefillThreads = 128;

// The arguments that every attention kernel has.
struct AttentionArgs {
  KvBlock block;
  const std::byte* kv = nullptr;  // where the layer's pages begin
  const AttentionSegment* segments = nullptr;
  const int32_t* pages = nullptr;
  // Rows of q with positions applied: head h of packed row r at q + r *
  // q_stride + h * head_dim, not yet scaled.
  const float* q = nullptr;
  int64_t q_stride = 0;
  // The result, [rows, num_heads, head_dim] of out_type.
  void* out = nullptr;
  DType out_type = DType::kFloat32;
  int32_t num_heads = 0;
  int32_t group = 0;   // query heads of a KV head
  int32_t window = 0;  // positions that a token sees, its own included; 0: all
  float scale = 0;     // of scores, times log2(e): weights are powers of 2
  float cap = 0;       // of scores, times log2(e); 0: none
  // DecoderSpec::alibi_heads, and the number, in the model, of the first head.
  int32_t alibi_heads = 0;
  int32_t first_head = 0;
  bool rounded_alibi = false;  // PositionKind::kRoundedAlibi
};

struct DecodeArgs {
  AttentionArgs common;
  int32_t splits = 1;           // of the longest sequence
  int32_t pages_per_split = 0;  // sequences of no more are not split
  int32_t chunk_heads = 0;      // query heads of a block
  int32_t chunks = 0;           // of a KV head
  int32_t stages = 0;           // pages in shared memory for each warp
  // The results for sequence s, head h and split i: [head_dim] weighted sums of
  // V, the largest score, the sum of weights; at (((s * num_heads) + h) *
  // splits + i) * (head_dim + 2). Not used if splits is 1.
  float* partials = nullptr;
  // Scores of sequence s and head h, by position from the first that is seen
  // on: at (s * num_heads + h) * score_stride. Sparse attention only.
  float* scores = nullptr;
  int64_t score_stride = 0;
};

// The arguments of the second half of sparse attention: it takes the largest of
// decode.scores, which it overwrites, and their rows of V.
struct KeptArgs {
  DecodeArgs decode;
  float sparsity = 1;
  int* kept = nullptr;  // [sequences, num_heads, score_stride]
};

inline constexpr int kKeptThreads = 256;

// Returns the fours of elements of a row of V, the last perhaps not whole.
constexpr int KeptFours(int head_dim) { return (head_dim + 3) / 4; }
// Returns how many threads take a row of V together.
constexpr int KeptWidth(int head_dim) {
  int width = 1;
  while (width < KeptFours(head_dim) && width < 32) width *= 2;
  return width;
}
// Returns the bytes of shared memory for each group's sums of V and weights.
constexpr size_t KeptSharedBytes(int head_dim) {
  return sizeof(float) * (kKeptThreads / KeptWidth(head_dim)) *
         (4 * KeptFours(head_dim) + 1);
}

struct PrefillArgs {
  AttentionArgs common;
  const int32_t* tile_begin = nullptr;  // [segments + 1]
  int32_t segments = 0;
  int32_t tile_rows = 0;
  int32_t stages = 0;  // pages in shared memory: 1 or 2
};

}  // namespace sluice
