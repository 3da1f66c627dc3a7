#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/sampling_params.h"
#include "common/step_plan.h"
#include "common/types.h"

namespace sluice {

enum class Endpoint { kChatCompletions, kCompletions };

// One validated request of a job, ready to be generated.
struct Request {
  JobId job;
  int64_t index = 0;  // in the input, 0-based
  std::string custom_id;
  Endpoint endpoint = Endpoint::kCompletions;
  std::vector<int32_t> prompt;  // token ids; never empty
  SamplingParams sampling;
  int32_t max_tokens = 0;  // to generate; prompt + max_tokens <= max_model_len
  std::vector<std::string> stop;
  bool ignore_eos = false;
  bool echo = false;        // completions: text starts with the prompt
  std::string prompt_text;  // only if echo
};

enum class FinishReason { kStop, kLength };

// How a request ended: with an answer, or (status not OK) with an error. A
// cancelled request has kCancelled.
struct Generation {
  absl::Status status;
  FinishReason finish_reason = FinishReason::kStop;
  std::string text;             // detokenized, without the stop string
  std::vector<int32_t> tokens;  // generated, without the end-of-sequence token
  int32_t generated = 0;        // tokens sampled, end of sequence included
  std::vector<SampledToken> logprobs;  // parallel to tokens, if asked for
};

}  // namespace sluice
