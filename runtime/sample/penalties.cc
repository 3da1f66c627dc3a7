#include "runtime/sample/penalties.h"

namespace sluice {

bool PenaltiesNeedCounts(const SamplingParams& params) {
  return params.repetition_penalty != 1 || params.presence_penalty != 0 ||
         params.frequency_penalty != 0;
}

void ApplyPenalties(const SamplingParams& params, const TokenCounts& counts,
                    std::span<float> logits,
                    std::vector<std::pair<int32_t, float>>& changed) {
  const auto in_vocabulary = [&](int32_t token) {
    return token >= 0 && static_cast<size_t>(token) < logits.size();
  };
  if (PenaltiesNeedCounts(params)) {
    for (const auto& [token, count] : counts) {
      if (!in_vocabulary(token)) continue;
      float& logit = logits[token];
      changed.emplace_back(token, logit);
      if (params.repetition_penalty != 1) {
        logit = logit > 0 ? logit / params.repetition_penalty
                          : logit * params.repetition_penalty;
      }
      if (count.generated > 0) {
        logit -= params.frequency_penalty * count.generated;
        logit -= params.presence_penalty;
      }
    }
  }
  for (const auto& [token, bias] : params.logit_bias) {
    if (!in_vocabulary(token)) continue;
    changed.emplace_back(token, logits[token]);
    logits[token] += bias;
  }
}

}  // namespace sluice
