#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace sluice {

// The most likely tokens that a request may ask for beside each token.
inline constexpr int32_t kMaxTopLogprobs = 20;
// The most likely tokens that are told beside a beam's, at most: its
// candidates. No scores are told with more than kMaxTopLogprobs.
inline constexpr int32_t kMaxBeamCandidates = 256;

// A bias that only Sluice's own requests have, as those of users end at 100.
// Tokens that have it in SamplingParams::logit_bias are told as the top ones,
// instead of the likeliest, if logprobs > 0: so the log-probabilities of given
// tokens are known, however small, and take the room of biases in a plan.
inline constexpr float kToldTokenBias = 1000;

// The parameters by which the last stage samples one request's tokens. The
// defaults mean greedy sampling of unaltered logits. Order of application:
// penalties and logit bias, then temperature, then top-k, top-p, min-p.
struct SamplingParams {
  float temperature = 0;  // 0: greedy
  int32_t top_k = 0;      // 0: off
  float top_p = 1;        // (0, 1]
  float min_p = 0;        // [0, 1]; relative to the most likely token
  float repetition_penalty =
      1;  // > 0; over prompt and generated tokens (CTRL, as in Hugging Face)
  float presence_penalty = 0;   // [-2, 2]; over generated tokens
  float frequency_penalty = 0;  // [-2, 2]; over generated tokens
  std::vector<std::pair<int32_t, float>>
      logit_bias;     // token id, added to its logit
  uint64_t seed = 0;  // with the position, the whole key of the random stream
  int32_t logprobs =
      -1;  // -1: none; n >= 0: the sampled token's and the n most likely ones',
           // at most kMaxBeamCandidates; scored tokens' likewise
};

}  // namespace sluice
