#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>

#include "common/sampling_params.h"
#include "common/step_plan.h"
#include "runtime/sample/penalties.h"
#include "runtime/sample/sample_token.h"
#include "runtime/sample/sampler_scratch.h"

namespace sluice {

// Samples the tokens of one sequence. Thread-compatible.
//
// The random number for position p is a pure function of (seed, p), so that a
// result does not depend on batch mates, on the split over workers, or on
// recovery.
//
// Greedy samples the largest logit, of equal ones the lowest token id. See
// penalties.h and distribution.h for what else is defined exactly.
class Sampler {
 public:
  // Tokens at positions >= prompt_tokens count as generated for the presence
  // and frequency penalties.
  Sampler(const SamplingParams& params, int32_t prompt_tokens);

  // Tells which tokens stand at positions start, start + 1, ...; in order, each
  // position once.
  void Observe(int32_t start, std::span<const int32_t> tokens);

  // Samples the token for `position` (that of the new token) from `logits`
  // [vocab], which it may overwrite. Sets token, and logprob and top if asked
  // for; token is -1 if a logit is NaN or +inf, or no finite logit is left.
  // Log-probabilities are those of the model: of the logits as given, before
  // penalties, bias, temperature and truncation.
  SampledToken Sample(std::span<float> logits, int32_t position,
                      SamplerScratch& scratch) const;

  // What Sample() would do, or scoring `target`, for whatever has the logits.
  // Nothing if it takes more than that: penalties, a bias, likeliest tokens
  // beside the one.
  std::optional<SampleRequest> Request(int32_t position) const;
  std::optional<SampleRequest> ScoreRequest(int32_t target) const;
  // What Sample() gives when this is the answer to Request().
  SampledToken Accept(const TokenSample& sample) const;

  // Likeliest tokens wanted beside each; 0 also if no log-probabilities are.
  int32_t num_top() const { return std::max(params_.logprobs, 0); }

 private:
  SamplingParams params_;
  int32_t prompt_tokens_;
  TokenCounts counts_;  // only kept if a penalty needs it
};

}  // namespace sluice
