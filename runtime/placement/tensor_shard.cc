#include "runtime/placement/tensor_shard.h"

#include <algorithm>
#include <numeric>

#include "runtime/placement/matrix_layout.h"

namespace sluice {
namespace {

// Cuts `columns` at multiples of `unit`, into parts as equal as these allow.
ColumnRange Cut(int32_t columns, int32_t unit, TensorRank of) {
  const int64_t units = (int64_t{columns} + unit - 1) / unit;
  const auto border = [&](int64_t rank) {
    const int64_t column = units * rank / of.ranks * unit;
    return static_cast<int32_t>(std::min<int64_t>(columns, column));
  };
  return {border(of.rank), border(of.rank + 1)};
}

// Returns the multiples to cut at: whole panels, or less where parts of whole
// panels would be too unequal.
int32_t UnitOf(int32_t columns, bool quantized, int32_t ranks) {
  constexpr int32_t kUnitsPerRank = 4;
  const int32_t min = quantized ? kPanelGroup : 1;
  int32_t unit = kPanelColumns;
  while (unit > min && columns / unit < kUnitsPerRank * ranks) unit /= 2;
  return unit;
}

// Divides the heads; returns false if they can't be. Heads are cut so that all
// of q, k and v begin at a group of a quantized matrix, as they do undivided.
bool CutHeads(const DecoderSpec& spec, bool quantized, TensorRank of,
              TensorShard* shard) {
  const int32_t kv = spec.num_kv_heads;
  const int32_t group = spec.num_heads / kv;
  const int32_t unit =
      quantized ? kPanelGroup / std::gcd(kPanelGroup, spec.head_dim) : 1;
  if (kv % unit == 0 && kv / unit >= of.ranks) {
    shard->kv_heads = Cut(kv, unit, of);
    shard->heads = {shard->kv_heads.begin * group, shard->kv_heads.end * group};
    return true;
  }
  // Several ranks share a KV head.
  const int32_t most = (of.ranks + kv - 1) / kv;
  if (kv >= of.ranks || unit > 1 || group < most) return false;
  const int32_t head = static_cast<int32_t>(int64_t{of.rank} * kv / of.ranks);
  const auto first_rank = [&](int64_t of_head) {
    return static_cast<int32_t>((of_head * of.ranks + kv - 1) / kv);
  };
  const int32_t first = first_rank(head);
  const ColumnRange part =
      Cut(group, 1, {of.rank - first, first_rank(head + 1) - first});
  shard->kv_heads = {head, head + 1};
  shard->heads = {head * group + part.begin, head * group + part.end};
  return true;
}

}  // namespace

ColumnRange TensorShard::RowsOf(const WeightSlot& slot,
                                int32_t head_dim) const {
  const auto columns = [&](ColumnRange range) -> ColumnRange {
    return {range.begin * head_dim, range.end * head_dim};
  };
  switch (slot.split) {
    case RankSplit::kHeads:
      return columns(heads);
    case RankSplit::kKvHeads:
      return columns(kv_heads);
    case RankSplit::kEachHead:
      return heads;
    case RankSplit::kHidden:
      return hidden;
    case RankSplit::kInner:
      return inner;
    case RankSplit::kSharedInner:
      return shared_inner;
    case RankSplit::kExpertInner:
      return expert_inner;
    case RankSplit::kNone:
      break;
  }
  return {0, static_cast<int32_t>(slot.rows)};
}

TensorShard TensorShard::Of(const DecoderSpec& spec, WeightFormat format,
                            TensorRank of) {
  TensorShard shard;
  shard.of = of;
  shard.heads = {0, spec.num_heads};
  shard.kv_heads = {0, spec.num_kv_heads};
  shard.hidden = {0, spec.hidden_size};
  shard.inner = {0, spec.intermediate_size};
  shard.shared_inner = {0, spec.mixture.shared_size};
  shard.expert_inner = {0, spec.mixture.expert_size};
  shard.vocab = {0, spec.vocab_size};
  if (of.ranks == 1) return shard;
  const bool quantized = format != WeightFormat::kFull;
  shard.divides_heads = CutHeads(spec, quantized, of, &shard);
  const auto cut = [&](int32_t columns) {
    return Cut(columns, UnitOf(columns, quantized, of.ranks), of);
  };
  shard.hidden = cut(spec.hidden_size);
  shard.vocab = cut(spec.vocab_size);
  // Where gate and up lie one after the other, the groups of up begin in the
  // middle of its columns if gate does not end at a group: no two parts then
  // have the groups of the whole.
  const auto cut_inner = [&](int32_t columns) {
    const bool whole_groups = columns % kPanelGroup == 0;
    return quantized && spec.gated_mlp && !whole_groups
               ? Cut(columns, columns, of)
               : cut(columns);
  };
  shard.inner = cut_inner(spec.intermediate_size);
  shard.shared_inner = cut_inner(spec.mixture.shared_size);
  shard.expert_inner = cut_inner(spec.mixture.expert_size);
  return shard;
}

std::vector<size_t> ShardBounds(const DecoderSpec& spec, WeightFormat format,
                                int32_t ranks,
                                ColumnRange TensorShard::*columns,
                                size_t bytes) {
  std::vector<size_t> bounds = {0};
  for (int32_t rank = 0; rank < ranks; ++rank) {
    const TensorShard shard = TensorShard::Of(spec, format, {rank, ranks});
    bounds.push_back((shard.*columns).end * bytes);
  }
  return bounds;
}

ExchangeBounds ExchangeBounds::Of(const DecoderSpec& spec, WeightFormat format,
                                  int32_t ranks, DType dtype) {
  const auto bounds = [&](ColumnRange TensorShard::*columns, size_t bytes) {
    return ShardBounds(spec, format, ranks, columns, bytes);
  };
  const size_t element = ElementBytes(dtype);
  ExchangeBounds all = {
      .heads = bounds(&TensorShard::heads, spec.head_dim * element),
      .inner = bounds(&TensorShard::inner, element),
      .shared_inner = bounds(&TensorShard::shared_inner, element),
      .expert_inner = bounds(&TensorShard::expert_inner, element),
      .x = bounds(&TensorShard::hidden, sizeof(float)),
      .logits = bounds(&TensorShard::vocab, sizeof(float))};
  if (spec.qk_norm == QkNorm::kAllHeads &&
      TensorShard::Of(spec, format, {0, ranks}).divides_heads) {
    all.q_squares = bounds(&TensorShard::heads, sizeof(float));
    // Of ranks that share a KV head, the first gives its sum.
    all.k_squares = bounds(&TensorShard::kv_heads, sizeof(float));
  }
  return all;
}

size_t GreatestPart(const std::vector<size_t>& bounds) {
  size_t greatest = 0;
  for (size_t i = 1; i < bounds.size(); ++i) {
    // Bounds of heads that all ranks have are no parts.
    if (bounds[i] > bounds[i - 1]) {
      greatest = std::max(greatest, bounds[i] - bounds[i - 1]);
    }
  }
  return greatest;
}

int64_t GatheredRowBytes(const DecoderSpec& spec, const LayerSpec& layer,
                         const TensorShard& shard, DType dtype) {
  if (shard.of.ranks == 1) return 0;
  const int64_t element = dtype == DType::kFloat32 ? 4 : 2;
  const int64_t q =
      shard.divides_heads ? int64_t{spec.num_heads} * spec.head_dim : 0;
  const int64_t squares =
      shard.divides_heads && spec.qk_norm == QkNorm::kAllHeads
          ? int64_t{sizeof(float)} * (spec.num_heads + spec.num_kv_heads)
          : 0;
  const int64_t experts =
      layer.mixture
          ? int64_t{spec.mixture.experts_per_token} * spec.mixture.expert_size
          : 0;
  return squares + element * (q + spec.inner_size(layer) + experts) +
         2 * int64_t{sizeof(float)} * spec.hidden_size;
}

}  // namespace sluice
