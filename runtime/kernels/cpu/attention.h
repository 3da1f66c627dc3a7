#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/types.h"

// Attention of some rows (query position and head) over one KV head of one
// sequence, read in place from its pages (see KvLayout).
//
// Softmax is computed page by page with a running maximum and sum (Milakov and
// Gimelshein 2018, algorithm 3): no score matrix is ever formed, and one pass
// over K and V serves all rows. What a row gets depends on its query and its
// range of positions only, bit for bit: positions are taken in order, scores
// are summed over the head's elements in order, and rescaling happens at page
// borders.

namespace sluice {

// Rows in one call.
inline constexpr int32_t kAttentionRows = 32;

// Work space of one thread.
class AttentionScratch {
 public:
  explicit AttentionScratch(int32_t head_dim);
  AttentionScratch(AttentionScratch&&) noexcept = default;

  // Elements from one row to the next in `query` and `accumulator`.
  int32_t stride() const { return stride_; }
  float* query(int32_t row) { return query_ + row * stride_; }
  float* accumulator() { return accumulator_; }

 private:
  int32_t stride_;
  std::vector<float> storage_;
  float* query_;        // [kAttentionRows, stride]
  float* accumulator_;  // [kAttentionRows, stride]
};

struct AttentionCall {
  DType kv_dtype = DType::kFloat32;
  int32_t head_dim = 0;
  // K of this layer and head in page 0, and bytes from page to page.
  const void* k_base = nullptr;
  size_t page_stride = 0;
  std::span<const int32_t> pages;
  // Where the thread's next call will begin to read, if that is known; a hint.
  const void* next_k = nullptr;
  // Row r attends positions [begin[r], end[r]), never empty. Its query, already
  // scaled, is in the scratch.
  int32_t rows = 0;
  int32_t begin[kAttentionRows];
  int32_t end[kAttentionRows];
  // Row r's result, [head_dim] in out_dtype.
  DType out_dtype = DType::kFloat32;
  void* out[kAttentionRows];
};

void Attend(const AttentionCall& call, AttentionScratch& scratch);

// Writes K of positions [slot, slot + count) of a page, transposed, from rows
// of `k_stride` floats; and V alike. `k` and `v` point at the page's blocks of
// one head. slot + count <= kPageTokens.
void StoreKv(const float* k_rows, int32_t k_stride, const float* v_rows,
             int32_t v_stride, int32_t slot, int32_t count, int32_t head_dim,
             DType dtype, void* k, void* v);

}  // namespace sluice
