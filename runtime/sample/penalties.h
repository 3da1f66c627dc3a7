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
bool PenaltiesNeedCounts(const SamplingParams& params);

// Changes `logits` [vocab] of a sequence, in this order:
// 1. repetition penalty p, once per token of prompt and output: a positive
//    logit is divided by p, any other one multiplied (CTRL, Keskar et al. 2019,
//    section 4.1; Hugging Face's RepetitionPenaltyLogitsProcessor);
// 2. frequency penalty times the token's count in the output, and presence
//    penalty if that count is positive, are subtracted (OpenAI);
// 3. logit bias is added (OpenAI).
// Tokens outside the vocabulary are ignored. Appends (token, logit before) to
// `changed` for each change; the first entry of a token has the model's logit.
void ApplyPenalties(const SamplingParams& params, const TokenCounts& counts,
                    std::span<float> logits,
                    std::vector<std::pair<int32_t, float>>& changed);

}  // namespace sluice
