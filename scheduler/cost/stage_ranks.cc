#include "scheduler/cost/stage_ranks.h"

#include <algorithm>
#include <vector>

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
RankWork RankWorkOf(const DecoderSpec& model, LayerRange layers,
                    const Policy& policy, int32_t ranks) {
  RankWork work;
  double vocab = 0;
  std::vector<TensorShard> shards;
  for (int32_t rank = 0; rank < ranks; ++rank) {
    const TensorShard& shard = shards.emplace_back(
        TensorShard::Of(model, policy.compress_weights, {rank, ranks}));
    const double dim = model.head_dim;
    work.query_width = std::max(work.query_width, dim * shard.heads.size());
    work.kv_width = std::max(work.kv_width, dim * shard.kv_heads.size());
    vocab = std::max<double>(vocab, shard.vocab.size());
  }
  work.head_elements = vocab * model.embed_dim;
  if (model.embed_dim != model.hidden_size) {
    work.head_elements += 1.0 * model.hidden_size * model.embed_dim;
  }
  // Of a matrix, the rank's that has most.
  const auto most = [&](const LayerWeights::Matrix& matrix) {
    double elements = 0;
    for (const TensorShard& shard : shards) {
      double of_rank = 0;
      for (const WeightSlot& slot : matrix.slots) {
        of_rank += 1.0 * shard.RowsOf(slot, model.head_dim).size() *
                   static_cast<double>(slot.columns);
      }
      elements = std::max(elements, of_rank);
    }
    return elements;
  };
  for (const bool mixture : {false, true}) {
    int32_t count = 0;
    LayerSpec layer;
    for (int32_t i = layers.begin; i < layers.end; ++i) {
      if (model.layer(i).mixture != mixture) continue;
      layer = model.layer(i);
      ++count;
    }
    if (count == 0) continue;
    const double share = 1.0 * count / layers.size();
    const LayerWeights weights = WeightsOf(model, layer);
    for (const LayerWeights::Matrix& matrix : weights.matrices) {
      const bool attends =
          matrix.part == LayerMatrix::kQkv || matrix.part == LayerMatrix::kOut;
      (attends ? work.attention_elements : work.mlp_elements) +=
          share * most(matrix);
    }
    for (const LayerWeights::Matrix& matrix : weights.expert_matrices) {
      work.expert_elements += share * weights.experts * most(matrix);
    }
    if (ranks == 1) continue;
    // Heads, the stream twice, and the inside of an MLP or of each expert.
    const int inside = model.inner_size(layer) > 0 ? 1 : 0;
    work.expert_exchanges += share * weights.experts;
    work.exchanges +=
        share * (2 + inside + (shards.front().divides_heads ? 1 : 0));
    work.exchanged_bytes += share *
                            static_cast<double>(GatheredRowBytes(
                                model, layer, shards.front(), policy.dtype)) *
                            (ranks - 1) / ranks;
  }
  return work;
}

}  // namespace sluice
