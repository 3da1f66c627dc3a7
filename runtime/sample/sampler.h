#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "common/sampling_params.h"
#include "common/step_plan.h"
#include "runtime/sample/penalties.h"

namespace sluice {

// Scratch shared by the samplers of one thread, so that sampling allocates
// nothing in steady state.
struct SamplerScratch {
  std::vector<float> block_maxima;  // of the logits
  std::vector<double> block_sums;   // of the logits' exponentials
  std::vector<int32_t> tokens;      // candidates, by token id
  std::vector<float> weights;       // of the candidates
  std::vector<float> selection;     // to be permuted
  std::vector<std::pair<float, int32_t>> top;
  std::vector<std::pair<int32_t, float>> changed;
};

// Picks the tokens of one sequence. Thread-compatible.
//
// The random number for position p is a pure function of (seed, p), so that a
// result does not depend on batch mates, on the split over workers, or on
// recovery.
//
// Greedy picks the largest logit, of equal ones the lowest token id. See
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

  // Likeliest tokens wanted beside each; 0 also if no log-probabilities are.
  int32_t num_top() const { return std::max(params_.logprobs, 0); }

 private:
  SamplingParams params_;
  int32_t prompt_tokens_;
  TokenCounts counts_;  // only kept if a penalty needs it
};

}  // namespace sluice
