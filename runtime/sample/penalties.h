#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/sampling_params.h"

namespace sluice {

// The number of a token's occurrences in one sequence.
struct TokenCount {
  int32_t prompt = 0;
  int32_t generated = 0;
};
using TokenCounts = absl::flat_hash_map<int32_t, TokenCount>;

// Whether ApplyPenalties reads the counts.
inline bool PenaltiesNeedCounts(const SamplingParams& params) {
  return params.repetition_penalty != 1 || params.presence_penalty != 0 ||
         params.frequency_penalty != 0;
}

// Changes `logits` [vocab] of a sequence, in this order:
// 1. repetition penalty p, once per token of prompt and output: a positive
//    logit is divided by p, any other one multiplied (CTRL, Keskar et al. 2019,
//    section 4.1; Hugging Face's RepetitionPenaltyLogitsProcessor);
// 2. frequency penalty times the token's count in the output, and presence
//    penalty if that count is positive, are subtracted (OpenAI);
// 3. logit bias is added (OpenAI).
// Tokens outside the vocabulary are ignored. Appends (token, logit before) to
// `changed` for each change; the first entry of a token has the model's logit.
inline void ApplyPenalties(const SamplingParams& params,
                           const TokenCounts& counts, std::span<float> logits,
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
