#pragma once

#include <cstdint>
#include <span>

#include "runtime/sample/sampler_scratch.h"

namespace sluice {

// What is asked of a row of logits where it can be answered by whatever has
// them: nothing that depends on other tokens of the sequence, and no more than
// one token and one number for an answer. Plain data, so that a device may be
// shown many. See distribution.h for what the parameters mean.
struct SampleRequest {
  double uniform = 0;     // in [0, 1): where a distribution is inverted
  int32_t target = -1;    // a token that is given; -1: sample one
  float temperature = 0;  // above 0: draw one; else the likeliest
  int32_t top_k = 0;
  float top_p = 1;
  float min_p = 0;
  int32_t logprob = 0;  // 1: the token's log-probability is wanted, too
};

struct TokenSample {
  // -1: a logit is NaN or +inf, or none is finite.
  int32_t token = -1;
  // In softmax(logits), without temperature and truncation; -inf for a logit of
  // -inf. NaN if there is no token, 0 if it was not asked for.
  float logprob = 0;
};

// The host's answer, which others must equal but for rounding: of sums, and so
// of the borders between tokens and of truncation. REQUIRES: target < vocab.
TokenSample SampleToken(const SampleRequest& request,
                        std::span<const float> logits, SamplerScratch& scratch);

}  // namespace sluice
