#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/kv/kv_layout.h"
#include "runtime/placement/backend_space.h"

namespace sluice {

// A query as the integer codes that attention over quantized K multiplies.
struct QueryCodes {
  // Two words hold each four elements: 16-bit codes of elements 0 and 2, then
  // of 1 and 3 (low half first). Where processors multiply bytes and the codes
  // are that small, one word holds four. Words are kGroupRows apart: those of
  // the rows of a group lie side by side. [stride / 2]
  int32_t* words;
  // The value of a code of 1 and the sum of the elements. [groups][2]
  float* units;
};

// Scales and minima of the V of a page, [groups][kPageTokens]; and each group's
// largest scale, to which the scales are relative.
struct PageScales {
  float* scales;
  float* minima;
  float* largest;
};

// The work space of attention on one thread, to which it is confined.
class AttentionScratch {
 public:
  // `sparse_context` counts the positions that a call with sparsity below 1 may
  // attend; 0 if there will be none.
  explicit AttentionScratch(int32_t head_dim, int32_t sparse_context = 0);
  AttentionScratch(AttentionScratch&&) noexcept = default;
  AttentionScratch& operator=(AttentionScratch&&) noexcept = default;

  // Returns the elements from row to row in `query` and `accumulator`.
  int32_t stride() const { return stride_; }
  // Row r's query goes here: head_dim elements, already scaled. What lies
  // behind them is 0 and must stay so.
  float* query(int32_t row) { return parts_.query + row * stride_; }

  // The rest is the kernels' own.

  static constexpr int32_t kSumLanes = kAttentionSumLanes;
  static constexpr int32_t kGroupRows = kAttentionGroupRows;

  // The rows' sums of weighted V, [kAttentionRows, stride].
  float* accumulator() { return parts_.accumulator; }
  // A row's result in the making. [stride]
  float* ordered() { return parts_.ordered; }
  QueryCodes query_codes(int32_t row) {
    const int32_t group = row / kGroupRows * kGroupRows;
    return {parts_.query_words + group * stride_ / 2 + (row - group),
            parts_.query_units + row * 2 * groups_};
  }
  // Lanes that add up to the sum of a row's weights, then, for each group, to
  // the sum of weight times minimum. [1 + groups][kSumLanes]
  float* sums(int32_t row) {
    return parts_.sums + row * (1 + groups_) * kSumLanes;
  }
  PageScales page_scales() { return parts_.page_scales; }
  // The codes of weights, [kGroupRows][groups][kPageTokens], and the values of
  // a code of 1, [kGroupRows][groups].
  int16_t* weight_codes() { return parts_.weight_codes; }
  float* weight_units() { return parts_.weight_units; }

  int32_t sparse_context() const { return sparse_context_; }
  // Scores of one of kGroupRows rows by position, from the beginning of the
  // first page on.
  float* scores(int32_t row) {
    return parts_.scores + int64_t{row} * score_stride_;
  }
  // Positions kept and their weights, with room for whole vectors.
  int32_t* kept() { return parts_.kept; }
  float* kept_weights() { return parts_.kept_weights; }
  // A bit for each position, set if it is kept, from the first page on.
  uint32_t* masks() { return parts_.masks; }

 private:
  struct Parts {
    float* query;
    float* accumulator;
    float* ordered;
    int32_t* query_words;
    float* query_units;
    float* sums;
    PageScales page_scales;
    int16_t* weight_codes;
    float* weight_units;
    float* scores;
    int32_t* kept;
    float* kept_weights;
    uint32_t* masks;
  };

  int32_t stride_;
  int32_t groups_;
  int32_t sparse_context_;
  int32_t score_stride_;
  std::vector<std::byte> storage_;
  Parts parts_;
};

}  // namespace sluice
