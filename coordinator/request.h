#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/pooling.h"
#include "common/sampling_params.h"
#include "common/step_plan.h"
#include "common/types.h"

namespace sluice {

// The max_tokens of a request if it, its job and its model have none.
inline constexpr int32_t kDefaultMaxTokens = 128;

enum class Endpoint {
  kChatCompletions,
  kCompletions,
  kEmbeddings,
  kScore,
  kRerank,
};

// Tokens of an answer, in the order in which they were sampled.
struct AnswerTokens {
  std::vector<int32_t> tokens;
  std::vector<SampledToken> logprobs;  // parallel, if asked for
};

// What becomes of a pooled vector.
struct EmbeddingParams {
  bool normalize = true;   // to the length 1, at last
  int32_t dimensions = 0;  // the first ones are kept; 0: all
  bool base64 = false;     // of float32, little-endian; else a list of numbers
};

// Tokens of which a reranker says one behind a query and a document.
struct ScoreTokens {
  int32_t yes = -1;
  int32_t no = -1;
};

// What becomes of a line that compares queries with documents. With tokens,
// each part is a pair, and its score the probability of `yes` against `no`.
// Without, the parts are the queries, one or as many as the documents, and
// behind them the documents, all embedded; a score is their cosine.
struct ScoreParams {
  ScoreTokens tokens;
  int32_t queries = 0;     // among the parts, if these are embedded
  int32_t top_n = 0;       // the best of a reranking; 0: all
  bool documents = false;  // their texts, which are the parts', are told
};

// When a beam search of a width ends that has as many answers: at once; when no
// beam could be better if it ended now; or, if longer answers are favoured,
// when none could be at its greatest length.
enum class EarlyStopping { kNo, kYes, kNever };

// How a beam search ranks answers: by their log-probability, divided by their
// length to the power of the penalty.
struct BeamParams {
  double length_penalty = 1;
  EarlyStopping early_stopping = EarlyStopping::kNo;
};

// What the parts of a line do not share.
struct RequestPart {
  int32_t prompt_tokens = 0;  // 0: its prompt is that of the part before
  int32_t max_tokens = 0;
  uint64_t seed = 0;
  std::string prompt_text;  // only if echo or score.documents
};

// One validated request of a job, ready to be generated; or a whole line of
// several, its parts, each of which becomes a request of its own (SplitLine).
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
  // Tokens to generate; prompt + max_tokens <= max_model_len. 0 only with echo
  // or a pooling.
  int32_t max_tokens = 0;
  bool max_tokens_by_default = false;  // set by neither it nor its job
  std::vector<std::string> stop;       // looked for in the text
  std::vector<int32_t> stop_tokens;    // end the answer, as no part of it
  bool ignore_eos = false;
  bool echo = false;        // completions: text starts with the prompt
  std::string prompt_text;  // only if echo or score.documents
  // Of embeddings: nothing is sampled, and the prompt's hidden states are
  // pooled.
  Pooling pooling = Pooling::kNone;
  EmbeddingParams embedding;
  ScoreParams score;
  // Of a whole line with several parts: these, whose prompts are in `prompt`,
  // one behind the other. Of a request: its place among the line's.
  std::vector<RequestPart> parts;
  int32_t part = 0;
  int32_t num_parts = 1;
  // Each prompt of a completion gets so many choices: the best of its
  // candidates. These are parts, those of the first prompt first.
  int32_t choices = 1;
  int32_t candidates = 1;
  // The candidates are the beams of a search, found together: one request for
  // each prompt, the first candidate's, has the answers of all.
  std::optional<BeamParams> beams;
  // Nobody asked for sampling.logprobs, which tell the best candidates.
  bool hides_logprobs = false;
  int64_t priority = 0;  // its job's, when it was handed out
  // The begin of the answer, if an earlier process came so far.
  AnswerTokens known;

  // Tokens still to be generated, at most.
  int64_t left() const {
    return max_tokens - static_cast<int64_t>(known.tokens.size());
  }
  // Whether the prompt's tokens are scored, too.
  bool scores_prompt() const { return echo && sampling.logprobs >= 0; }
  bool pools() const { return pooling != Pooling::kNone; }
  bool shows_logprobs() const {
    return sampling.logprobs >= 0 && !hides_logprobs;
  }
  // Whether its prompt counts: several candidates have one together.
  bool counts_prompt() const { return part % candidates == 0; }
  bool scores() const {
    return endpoint == Endpoint::kScore || endpoint == Endpoint::kRerank;
  }
};

// Calls fn(part, its prompt) for each part of a line, whose prompt this is.
// kDataLoss if its parts do not have the tokens of its prompt.
absl::Status ForEachPart(
    absl::Span<const RequestPart> parts, absl::Span<const int32_t> prompt,
    absl::FunctionRef<void(const RequestPart&, absl::Span<const int32_t>)> fn);

// Makes requests of a line: itself, if it has no parts; of its parts, but of
// beams' the first ones. Fails as ForEachPart.
absl::StatusOr<std::vector<Request>> SplitLine(Request line);

// The tokens that a whole line generates at most.
int64_t MaxTokensOfLine(const Request& line);

// Tokens of a request that is being generated.
struct NewTokens {
  JobId job;
  int64_t index = 0;
  int32_t begin = 0;  // tokens of the answer before these
  AnswerTokens answer;
  int32_t part = 0;  // Request::part
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
  int32_t cached_tokens = 0;    // of the prompt, computed by other requests
  // If asked for: `generated` entries, those of `tokens` and, behind them, that
  // of the token which ended the answer and is not part of it.
  std::vector<SampledToken> logprobs;
  // Scores of the prompt from position 1 on, if asked for.
  TokenScores prompt_scores;
  std::vector<float> pooled;  // [hidden_size], of a request that pools
};

// A request that has ended.
struct FinishedRequest {
  Request request;
  Generation generation;
};

// The parts of a line that has ended, in their order.
using FinishedLine = std::vector<FinishedRequest>;

// The approximate bytes of a finished request, or line, in memory.
int64_t MemoryBytes(const FinishedRequest& finished);
int64_t MemoryBytes(const FinishedLine& line);

}  // namespace sluice
