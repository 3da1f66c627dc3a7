#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/sampling_params.h"
#include "common/step_plan.h"
#include "runtime/sample/sampler_scratch.h"

// The stateless parts of Sampler; for it, SampleToken and tests.
//
// Logits are [vocab]; those that are -inf are never sampled. The functions that
// take a Peak read FindPeak's scratch for the same logits.

namespace sluice {

// The largest logit, and the lowest token that has it.
struct Peak {
  int32_t token = -1;  // -1: a logit is NaN or +inf, or none is finite
  float logit = 0;
};
Peak FindPeak(std::span<const float> logits, SamplerScratch& scratch);

// Returns log(sum(exp(logits))).
double LogSumExp(std::span<const float> logits, const Peak& peak,
                 SamplerScratch& scratch);

// Returns the `n` likeliest tokens (fewer if fewer have finite logits),
// likeliest first, equal ones by token id. logprob = logit - log_sum_exp.
std::vector<TokenLogprob> TopLogprobs(std::span<const float> logits, int32_t n,
                                      double log_sum_exp,
                                      SamplerScratch& scratch);

// Samples from the distribution of FilteredDistribution (temperature > 0) by
// inverting its cumulative distribution, in order of token id, at `uniform` in
// [0, 1).
int32_t SampleAt(const SamplingParams& params, std::span<const float> logits,
                 const Peak& peak, double uniform, SamplerScratch& scratch);

// Returns the log-probability of `token` in softmax(logits), -inf for a logit
// of -inf, NaN if a logit is NaN or +inf, or none is finite. `top` gets
// TopLogprobs' tokens, filled up with {-1, 0}. Allocates nothing in steady
// state. REQUIRES: 0 <= token < vocab.
float ScoreToken(std::span<const float> logits, int32_t token,
                 std::span<TokenLogprob> top, SamplerScratch& scratch);

struct TokenProbability {
  int32_t token = 0;
  double probability = 0;
};
// Returns the distribution that is sampled: tokens of probability > 0 by token
// id. Truncation is Hugging Face transformers', in its order, each over the
// tokens that the one before left. Top-k keeps the k largest logits and
// whatever equals the k-th. Top-p keeps the smallest set of likeliest tokens,
// equal ones by token id, whose probabilities add up to at least top_p; one
// token at least. Min-p keeps those at least min_p times as likely as the
// likeliest; at least exp(-86) times, where float ends.
std::vector<TokenProbability> FilteredDistribution(
    const SamplingParams& params, std::span<const float> logits,
    SamplerScratch& scratch);

}  // namespace sluice
