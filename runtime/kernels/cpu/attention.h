#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "common/types.h"
#include "runtime/kernels/cpu/attention_scratch.h"
#include "runtime/kv/kv_layout.h"

// Attention of some rows (query position and head) over one KV head of one
// sequence, read in place from its pages, in any format of KvLayout.
//
// Softmax is computed page by page with a running maximum and sum (Milakov and
// Gimelshein 2018, algorithm 3): no score matrix is ever formed, and one pass
// over K and V serves all rows. What a row gets depends on its query, its range
// of positions and the sparsity only, bit for bit: positions are taken in a
// fixed order, scores are summed over the head's elements in order, and
// rescaling happens at page borders.
//
// Quantized K and V are never written out as floats. For a row with query q, in
// each group of elements with scale s_j and minimum m_j at position j,
//
//   score_j += s_j * sum_i q_i code_ij + m_j * sum_i q_i
//   out_i   += sum_j (p_j s_j) code_ji + sum_j p_j m_j
//
// where the sums over codes are exact sums of integers: q is rounded to
// multiples of its largest element in the group / L, and p s to multiples of
// the page's largest p times its largest s in the group / L. L is 32767 for
// kInt8 and 127 for kInt4, so that products are of as many bits as processors
// multiply fastest, and rounding costs a small part of what the codes of K and
// V cost. Of p s, the mean of what rounding takes away is given back.

namespace sluice {

struct AttentionCall {
  KvFormat format = KvFormat::kFloat32;
  int32_t head_dim = 0;
  // The head's block in page number 0 of the layer (SegmentView::kv +
  // KvLayout::head_offset), and bytes from page to page
  // (KvLayout::layer_page_bytes).
  const std::byte* head = nullptr;
  size_t page_stride = 0;
  std::span<const int32_t> pages;
  // The head's block that the thread's next call will begin with, if that is
  // known; a hint.
  const std::byte* next = nullptr;
  // Row r attends positions [begin[r], end[r]), never empty. Its query is in
  // the scratch.
  int32_t rows = 0;
  int32_t begin[kAttentionRows];
  int32_t end[kAttentionRows];
  // Scores s become cap * tanh(s / cap); 0: they stay.
  float cap = 0;
  // If `alibi`, the score of position j of row r has slope[r] * (j + 1 -
  // end[r]) added to it; if rounded_alibi_scale is not 0, instead that times
  // b(j) - b(end[r] - 1), where b(j) is j * slope[r], with both and the product
  // rounded to bfloat16 (PositionKind::kRoundedAlibi).
  bool alibi = false;
  float rounded_alibi_scale = 0;
  float slope[kAttentionRows];
  // If `sinks`, row r's softmax has one term more, of the score sink[r], to
  // which no row of V belongs: the weights of the positions add up to less than
  // 1. Neither cap nor distances change it, and sparse attention keeps it. It
  // counts as the position before all others.
  bool sinks = false;
  float sink[kAttentionRows];
  // Row r's result, [head_dim] in out_dtype.
  DType out_dtype = DType::kFloat32;
  void* out[kAttentionRows];

  // The share of positions to keep, in (0, 1]. Below 1, each row keeps the
  // SparseCount() of its positions that have the largest weights (of equal ones
  // the first), renormalises the softmax over them and reads no other rows of V
  // (FlexGen, section 5: "sparse attention"). All rows must then attend the
  // same positions, as those of one new token do, and at most
  // scratch.sparse_context() of them. 1 is dense attention.
  float sparsity = 1;
  // If not null, what this call reads of V is added: codes or elements, scales
  // and minima, once for all rows that share the read.
  uint64_t* v_bytes_read = nullptr;
};

void Attend(const AttentionCall& call, AttentionScratch& scratch);

// Returns how many of `context` > 0 positions sparse attention keeps: max(1,
// ceil(sparsity * context)), in float32.
int32_t SparseCount(float sparsity, int32_t context);

// Writes K of positions [slot, slot + count) of a page from rows of `k_stride`
// floats, and V alike, into the block of one head. slot + count <= kPageTokens.
// Other positions of the page are left alone, and what is written for a
// position depends on its own K and V only.
//
// Quantized formats, for each position and group x (FlexGen, section 5): with
// m = fp16(min(x)), s = fp16((max(x) - m) / levels), levels 255 or 15, each
// rounded to nearest even, codes are round((x - m) / s) within [0, levels], or
// 0 where s is not positive; all in float32. So a constant that fp16 represents
// is exact, and else the error is at most s / 2 plus what rounding m and s cost
// at the ends of the range. A group that holds a NaN or an infinity, or too
// large for fp16, gets m = NaN, s = 0: it stays as visible as it would be in
// float32.
void StoreKv(const float* k_rows, int32_t k_stride, const float* v_rows,
             int32_t v_stride, int32_t slot, int32_t count, int32_t head_dim,
             KvFormat format, std::byte* head);

}  // namespace sluice
