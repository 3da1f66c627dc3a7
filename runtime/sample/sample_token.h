#pragma once

#include <cstdint>
#include <span>

#include "runtime/sample/sampler_scratch.h"

namespace sluice {

// A sampling request for one row of logits that the holder of the logits can
// answer: it depends on no other tokens of the sequence, and the answer is one
// token and one number. Plain data, so that many can be copied to a device. See
// distribution.h for the parameters.
struct SampleRequest {
  double uniform = 0;     // in [0, 1): the point of the inverse distribution
  int32_t target = -1;    // a given token; -1: sample one
  float temperature = 0;  // above 0: sample; else the likeliest token
  int32_t top_k = 0;
  float top_p = 1;
  float min_p = 0;
  int32_t logprob = 0;  // 1: the token's log-probability is wanted, too
};

struct TokenSample {
  // The token; -1: a logit is NaN or +inf, or none is finite.
  int32_t token = -1;
  // The log-probability in softmax(logits), without temperature and truncation;
  // -inf for a logit of -inf. NaN if there is no token, 0 if not asked for.
  float logprob = 0;
};

// Returns the host's answer, which others must equal except for the rounding of
// sums, and so of the borders of tokens and truncation. REQUIRES: target <
// vocab.
TokenSample SampleToken(const SampleRequest& request,
                        std::span<const float> logits, SamplerScratch& scratch);

}  // namespace sluice
