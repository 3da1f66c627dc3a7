#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/sampling_params.h"
#include "common/step_plan.h"
#include "common/types.h"

namespace sluice {

// The max_tokens of a request if it, its job and its model have none.
inline constexpr int32_t kDefaultMaxTokens = 128;

enum class Endpoint { kChatCompletions, kCompletions };

// Tokens of an answer, in the order in which they were sampled.
struct AnswerTokens {
  std::vector<int32_t> tokens;
  std::vector<SampledToken> logprobs;  // parallel, if asked for
};

// One validated request of a job, ready to be generated.
struct Request {
  JobId job;
  // The wall time at which the job was accepted, as it may be days ago.
  absl::Time accepted = absl::InfiniteFuture();
  int64_t index = 0;  // in the input, 0-based
  int64_t line = 0;   // of the input, from 1 on; 0: index + 1
  std::string custom_id;
  Endpoint endpoint = Endpoint::kCompletions;
  std::vector<int32_t> prompt;  // token ids; never empty
  SamplingParams sampling;
  // Tokens to generate; prompt + max_tokens <= max_model_len. 0 only with echo.
  int32_t max_tokens = 0;
  bool max_tokens_by_default = false;  // set by neither it nor its job
  std::vector<std::string> stop;       // looked for in the text
  std::vector<int32_t> stop_tokens;    // end the answer, as no part of it
  bool ignore_eos = false;
  bool echo = false;        // completions: text starts with the prompt
  std::string prompt_text;  // only if echo
  // The begin of the answer, if an earlier process came so far.
  AnswerTokens known;

  // Tokens still to be generated, at most.
  int64_t left() const {
    return max_tokens - static_cast<int64_t>(known.tokens.size());
  }
  // Whether the prompt's tokens are scored, too.
  bool scores_prompt() const { return echo && sampling.logprobs >= 0; }
};

// Tokens of a request that is being generated.
struct NewTokens {
  JobId job;
  int64_t index = 0;
  int32_t begin = 0;  // tokens of the answer before these
  AnswerTokens answer;
};

enum class FinishReason { kStop, kLength };

// The end of a request: an answer, or (status not OK) an error. A cancelled
// request has kCancelled.
struct Generation {
  absl::Status status;
  FinishReason finish_reason = FinishReason::kStop;
  std::string text;  // detokenized behind the prompt, without the stop string
  bool decode = false;          // `text` is still to be made of `tokens`
  std::vector<int32_t> tokens;  // generated, without the end-of-sequence token
  int32_t generated = 0;        // tokens sampled, end of sequence included
  // If asked for: `generated` entries, those of `tokens` and, behind them, that
  // of the token which ended the answer and is not part of it.
  std::vector<SampledToken> logprobs;
  // Scores of the prompt from position 1 on, if asked for.
  TokenScores prompt_scores;
};

// A request that has ended.
struct FinishedRequest {
  Request request;
  Generation generation;
};

// The approximate bytes of a finished request in memory.
int64_t MemoryBytes(const FinishedRequest& finished);

}  // namespace sluice
