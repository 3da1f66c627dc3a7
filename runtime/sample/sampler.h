#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/sampling_params.h"
#include "common/step_plan.h"

namespace sluice {

// Scratch shared by the samplers of one thread, so that sampling allocates
// nothing in steady state.
class SamplerScratch {
 public:
  std::vector<std::pair<float, int32_t>> candidates;
  std::vector<float> probabilities;
};

// Picks the tokens of one sequence. Thread-compatible.
//
// The random number for position p is a pure function of (seed, p), so that a
// result does not depend on batch mates, on the split over workers, or on
// recovery.
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
  // for; token is -1 if a logit is NaN or no finite logit is left.
  SampledToken Sample(std::span<float> logits, int32_t position,
                      SamplerScratch& scratch) const;

 private:
  struct Counts {
    int32_t prompt = 0;
    int32_t generated = 0;
  };
  SamplingParams params_;
  int32_t prompt_tokens_;
  absl::flat_hash_map<int32_t, Counts>
      counts_;  // only kept if a penalty needs it
};

}  // namespace sluice
