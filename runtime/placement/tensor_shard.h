#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/number_format.h"
#include "runtime/model/decoder_spec.h"
#include "runtime/model/layer_weights.h"

namespace sluice {

// One of the ranks that compute a stage's layers together (tensor parallel).
struct TensorRank {
  int32_t rank = 0;
  int32_t ranks = 1;
  // Whether the rank has what only one needs: the embedding, whole logits.
  bool leads() const { return rank == 0; }
  friend bool operator==(const TensorRank&, const TensorRank&) = default;
};

// The greatest number of ranks of a stage.
inline constexpr int32_t kMaxTensorRanks = 64;

// Neighbouring columns of a product, or heads.
struct ColumnRange {
  int32_t begin = 0;
  int32_t end = 0;
  int32_t size() const { return end - begin; }
  friend bool operator==(const ColumnRange&, const ColumnRange&) = default;
};

// The part of each layer and of the head that a rank computes.
//
// All matrices are divided by their output columns: an element of a product is
// a whole sum, on one rank, in the order that a single rank sums in, and ranks
// exchange columns, never partial sums. So answers are those of one rank, bit
// for bit. Dividing half of the matrices by their inputs would exchange less,
// but add partial sums, whose rounding depends on the number of ranks
// ("Efficiently Scaling Transformer Inference", Pope et al., section 3.2.1).
//
// That holds for quantized weights, too, whose groups are never cut. (Panels of
// q, k and v are others than undivided, and so may be their units; these are
// powers of two, which show only in parameters below 2^-20 of a panel's largest
// weight: see runtime/quant/group_codec.h.)
//
// Parts may be unequal, and all but the heads may be empty. Columns are cut at
// multiples of 128, which are whole panels, where there are enough of them;
// columns of quantized matrices at multiples of the groups that share a scale.
struct TensorShard {
  TensorRank of;
  // Query heads, and the KV heads that they attend with; several ranks have the
  // same KV head where there are fewer of these than ranks. If heads can't be
  // divided, as when there are fewer than ranks, all ranks have all of them.
  ColumnRange heads, kv_heads;
  bool divides_heads = false;
  ColumnRange hidden;  // columns of the residual stream: of `out` and `down`
  // Columns between the matrices of an MLP, of a mixture's shared expert, and
  // of each of the others.
  ColumnRange inner, shared_inner, expert_inner;
  ColumnRange vocab;  // columns of the head

  // Returns the rows of a layer's weight that the rank has.
  ColumnRange RowsOf(const WeightSlot& slot, int32_t head_dim) const;

  // REQUIRES: 0 <= rank < ranks. `format` is that of the layers' matrices.
  static TensorShard Of(const DecoderSpec& spec, WeightFormat format,
                        TensorRank of);
};

// Returns the bytes of a row at which the ranks' parts begin, and where the
// last ends: of columns, or heads, of `bytes` each.
std::vector<size_t> ShardBounds(const DecoderSpec& spec, WeightFormat format,
                                int32_t ranks,
                                ColumnRange TensorShard::*columns,
                                size_t bytes);

// The bounds of all rows that ranks exchange: of attention and of the inside of
// an MLP or an expert, in `dtype`, of the residual stream and of logits.
struct ExchangeBounds {
  std::vector<size_t> heads, inner, shared_inner, expert_inner, x, logits;
  // Of sums of each head's squares, float, of q and of k; only where all heads
  // are normed together, and divided.
  std::vector<size_t> q_squares, k_squares;

  static ExchangeBounds Of(const DecoderSpec& spec, WeightFormat format,
                           int32_t ranks, DType dtype);
};
// Returns the bytes of the greatest part of a row.
size_t GreatestPart(const std::vector<size_t>& bounds);

// Returns the bytes that each rank has of a row after a layer's exchanges, its
// own columns included: attention and the inside of an MLP, or of the experts
// that the row takes, in `dtype`, the residual stream twice in float32. Heads
// that all ranks have are not exchanged. With it come the sums of heads'
// squares.
int64_t GatheredRowBytes(const DecoderSpec& spec, const LayerSpec& layer,
                         const TensorShard& shard, DType dtype);

}  // namespace sluice
