#include "scheduler/cost/stage_ranks.h"

#include <algorithm>

#include "common/policy.h"
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
  const double all_queries =
      static_cast<double>(model.num_heads) * model.head_dim;
  double qkv = 0, out = 0, up = 0, down = 0, vocab = 0;
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
    qkv = std::max(qkv, (query + 2 * kv) * hidden);
    out = std::max(out, all_queries * shard.hidden.size());
    up = std::max(up,
                  (model.gated_mlp ? 2.0 : 1.0) * hidden * shard.inner.size());
    down = std::max(down, static_cast<double>(model.intermediate_size) *
                              shard.hidden.size());
    vocab = std::max<double>(vocab, shard.vocab.size());
    if (rank > 0) continue;
    work.exchanges = ranks == 1 ? 0 : shard.divides_heads ? 4 : 3;
    work.exchanged_bytes =
        static_cast<double>(GatheredRowBytes(model, shard, policy.dtype)) *
        (ranks - 1) / ranks;
  }
  work.attention_elements = qkv + out;
  work.mlp_elements = up + down;
  work.head_elements = vocab * model.embed_dim;
  if (model.embed_dim != model.hidden_size) {
    work.head_elements += hidden * model.embed_dim;
  }
  return work;
}

}  // namespace sluice
