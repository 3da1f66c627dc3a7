#include "scheduler/cost/stage_ranks.h"

#include <algorithm>
#include <array>

#include "common/policy.h"
#include "runtime/model/layer_weights.h"
#include "runtime/placement/tensor_shard.h"

// "Pope et al. 3": section 3 of "Efficiently Scaling Transformer Inference".

namespace sluice {

static_assert(kMaxRanks == kMaxTensorRanks);

int32_t StageRanks::count() const {
  int32_t count = 0;
  for (const Kind& kind : kinds) count += kind.count;
  return count;
}

bool RanksPlacement::Fits(const TierLimits& limits) const {
  for (size_t tier = 0; tier < kNumTiers; ++tier) {
    if (uses[tier].peak_bytes > limits[tier]) return false;
  }
  return true;
}

// Weights stay where they are, and rows are exchanged: Pope et al.'s 1D
// weight-stationary layout (3.2.1), but with all matrices divided by their
// outputs, so that what is gathered are columns and never sums (see
// TensorShard). Each exchange costs its bytes x (k - 1) / k over the exchange's
// bandwidth (their appendix A.1), and a latency.
RankWork RankWorkOf(const DecoderSpec& model, const Policy& policy,
                    int32_t ranks) {
  const double hidden = model.hidden_size;
  const LayerWeights weights = WeightsOf(model);
  // Of the rank that has most, by matrix.
  std::array<double, kNumLayerMatrices> elements = {};
  double vocab = 0;
  RankWork work;
  for (int32_t rank = 0; rank < ranks; ++rank) {
    const TensorShard shard =
        TensorShard::Of(model, policy.compress_weights, {rank, ranks});
    const double query =
        static_cast<double>(shard.heads.size()) * model.head_dim;
    const double kv =
        static_cast<double>(shard.kv_heads.size()) * model.head_dim;
    work.query_width = std::max(work.query_width, query);
    work.kv_width = std::max(work.kv_width, kv);
    for (const LayerWeights::Matrix& matrix : weights.matrices) {
      double of_rank = 0;
      for (const WeightSlot& slot : matrix.slots) {
        of_rank += 1.0 * shard.RowsOf(slot, model.head_dim).size() *
                   static_cast<double>(slot.columns);
      }
      double& most = elements[static_cast<size_t>(matrix.part)];
      most = std::max(most, of_rank);
    }
    vocab = std::max<double>(vocab, shard.vocab.size());
    if (rank > 0) continue;
    work.exchanges = ranks == 1 ? 0 : shard.divides_heads ? 4 : 3;
    work.exchanged_bytes =
        static_cast<double>(GatheredRowBytes(model, shard, policy.dtype)) *
        (ranks - 1) / ranks;
  }
  const auto of = [&](LayerMatrix part) {
    return elements[static_cast<size_t>(part)];
  };
  work.attention_elements = of(LayerMatrix::kQkv) + of(LayerMatrix::kOut);
  work.mlp_elements = of(LayerMatrix::kUp) + of(LayerMatrix::kDown);
  work.head_elements = vocab * model.embed_dim;
  if (model.embed_dim != model.hidden_size) {
    work.head_elements += hidden * model.embed_dim;
  }
  return work;
}

}  // namespace sluice
