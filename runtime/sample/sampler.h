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
// Greedy sampling takes the largest logit, of equal ones the lowest token id.
// penalties.h and distribution.h define the rest exactly.
class Sampler {
 public:
  // Tokens at positions >= prompt_tokens count as generated for the presence
  // and frequency penalties.
  Sampler(const SamplingParams& params, int32_t prompt_tokens);

  // Takes the tokens at positions start, start + 1, ...; in order, each
  // position once.
  void Observe(int32_t start, std::span<const int32_t> tokens);

  // Samples the token for `position` (that of the new token) from `logits`
  // [vocab], which it may overwrite. Sets token, and logprob and top if asked
  // for; token is -1 if a logit is NaN or +inf, or no finite logit is left.
  // Log-probabilities are those of the model: of the logits as given, before
  // penalties, bias, temperature and truncation.
  SampledToken Sample(std::span<float> logits, int32_t position,
                      SamplerScratch& scratch) const;

  // Returns Sample(), or scoring `target`, as a request for the holder of the
  // logits; nullopt if it takes more than that: penalties, a bias, likeliest
  // tokens beside the one.
  std::optional<SampleRequest> Request(int32_t position) const;
  std::optional<SampleRequest> ScoreRequest(int32_t target) const;
  // Returns Sample()'s result, given the answer to Request().
  SampledToken Accept(const TokenSample& sample) const;

  // The number of likeliest tokens wanted beside each; 0 also without logprobs.
  int32_t num_top() const { return std::max(params_.logprobs, 0); }

 private:
  SamplingParams params_;
  int32_t prompt_tokens_;
  TokenCounts counts_;  // only kept if a penalty needs it
};

}  // namespace sluice
