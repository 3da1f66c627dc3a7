#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "coordinator/jobs/requests/json_line.h"
#include "coordinator/request.h"
#include "runtime/model/model_dir.h"
#include "runtime/text/chat_template.h"
#include "runtime/text/tokenizer/tokenizer.h"
#include "sluice/v1/jobs.pb.h"

namespace sluice {

// Prompts, or texts to be embedded, of a line: OpenAI's limit of these. Also
// the limit of a line's answers.
inline constexpr size_t kMaxLinePrompts = 2048;
// Tokens of the prompts of a line with several answers to each, counted with
// each answer.
inline constexpr int64_t kMaxLineTokens = 16 << 20;

// Finds the tokens that "no,yes" names; none, if it is "". kInvalidArgument
// says what it lacks, and names --score-tokens.
absl::StatusOr<ScoreTokens> FindScoreTokens(absl::string_view no_and_yes,
                                            const Tokenizer& tokenizer);

// Turns the lines of one job into requests. JSONL lines are in OpenAI's batch
// form
//   {"custom_id": ..., "method": "POST", "url": "/v1/chat/completions",
//    "/v1/completions", "/v1/embeddings", "/v1/score" or "/v1/rerank",
//    "body": {...}}
// or in the short form, which is a body with `prompt` or `messages` and maybe a
// custom_id. Without a custom_id a line gets "line-<number>". A list of
// prompts, or of texts to be embedded, makes a line of several requests.
//
// Parameters come from the request, or else the job's defaults, or else
// generation_config.json, or else are greedy with Options::default_max_tokens.
// A default number of tokens shrinks to what fits the model; one that the
// request gives must fit. The seed of a request is mixed with its prompt's
// tokens, so that a seed of all lines gives different prompts different random
// numbers, and equal ones the same; candidate k to a prompt has the request's
// seed + k, modulo 2^64. Without a seed of its own, request i gets output i of
// splitmix64 started at the job's seed, and of a line with several parts the
// p-th one but the first output p of one started at that.
// Thread-safe.
class RequestParser {
 public:
  struct Options {
    std::string served_model;
    int32_t max_model_len = 0;
    int32_t default_max_tokens = kDefaultMaxTokens;
    const ModelDir* model = nullptr;  // may be null
    const Tokenizer* tokenizer = nullptr;
    const ChatTemplate* chat_template = nullptr;  // null: chat is an error
    std::string no_chat_template;  // why it is null; "": the model has none
    ScoreTokens score_tokens;      // of a reranker; -1: as its files say
  };
  RequestParser(Options options, v1::RequestDefaults defaults);

  struct Line {
    // The line's own custom_id or a generated one; "" if a bad line has none.
    std::string custom_id;
    std::optional<LineError> error;
    // The whole line, without `job`; only if there is no error.
    Request request;
  };
  // Parses a line of JSON; `index` counts lines from 0.
  Line ParseJson(absl::string_view text, int64_t index) const;
  Line ParseText(absl::string_view text, int64_t index) const;
  // Makes the request of a prompt that is all of it.
  Line ParsePrompt(absl::string_view prompt, std::string custom_id,
                   int64_t index) const;

  // Whether texts could be put into a chat template, and are not.
  bool leaves_template_out() const {
    return options_.chat_template != nullptr && !chats();
  }
  // The model's token ids are [0, vocab_size).
  int32_t vocab_size() const { return vocab_size_; }

 private:
  // Whether prompts without an endpoint of their own become chats.
  bool chats() const { return defaults_.chat() || defaults_.has_system(); }
  std::optional<LineError> Parse(absl::string_view text, Line* line) const;
  struct Prompt {
    std::string field;  // in the body, as "prompt[2]"
    std::vector<int32_t> tokens;
    std::string text;  // if it is kept
  };
  // Makes a whole line of a body.
  std::optional<LineError> Build(struct RequestBody& body,
                                 Request* request) const;
  // Reads the prompts in the body, which needs them.
  std::optional<LineError> BuildPrompts(const struct RequestBody& body,
                                        const std::string& field,
                                        absl::string_view need,
                                        std::vector<Prompt>* prompts) const;
  std::optional<LineError> BuildPrompt(const struct RequestBody& body,
                                       const nlohmann::ordered_json& prompt,
                                       const std::string& field,
                                       Prompt* out) const;
  // Keeps what the body says of each prompt's tokens.
  std::optional<LineError> TruncatePrompts(const struct RequestBody& body,
                                           bool embeds,
                                           std::vector<Prompt>* prompts) const;
  // Returns how many tokens of a text become an embedding.
  int32_t EmbeddingLimit(const EmbeddingConfig& config) const;
  std::optional<LineError> BuildChatPrompt(struct RequestBody& body,
                                           std::vector<Prompt>* prompts) const;
  // How queries and documents are compared.
  struct ScoreKind {
    ScoreTokens tokens;        // -1: by their embeddings
    bool by_template = false;  // which knows the roles query and document
  };
  // An error says why they can't be, and what to do.
  absl::StatusOr<ScoreKind> FindScoreKind() const;
  std::optional<LineError> BuildScores(struct RequestBody& body,
                                       std::vector<Prompt>* prompts,
                                       Request* request) const;
  absl::StatusOr<std::string> PairText(
      const ScoreKind& kind, const std::string& query,
      const std::string& document,
      const std::optional<std::string>& instruction) const;
  void SetScoring(Request* request) const;
  std::optional<LineError> SetBeams(const struct RequestBody& body,
                                    Request* request) const;
  std::optional<LineError> SetChoices(const struct RequestBody& body,
                                      const std::vector<Prompt>& prompts,
                                      Request* request) const;
  std::optional<LineError> AddPrompts(const struct RequestBody& body,
                                      std::vector<Prompt> prompts,
                                      Request* request) const;
  std::optional<LineError> SetEmbedding(const struct RequestBody& body,
                                        const std::vector<Prompt>& prompts,
                                        Request* request) const;
  std::optional<LineError> CheckLength(absl::string_view text,
                                       absl::string_view field) const;
  std::optional<LineError> EncodePrompt(absl::string_view text,
                                        absl::string_view field,
                                        bool add_special_tokens,
                                        Prompt* prompt) const;
  std::optional<LineError> SetMaxTokens(const struct RequestBody& body,
                                        const Prompt& of, Request* request,
                                        RequestPart* part) const;
  // Stop strings that are special tokens become stop tokens, as a text has no
  // special tokens in it.
  std::optional<LineError> SetStops(struct RequestBody& body,
                                    Request* request) const;
  void SetSampling(struct RequestBody& body, Request* request) const;

  const Options options_;
  const v1::RequestDefaults defaults_;
  const GenerationDefaults generation_;
  int32_t vocab_size_;
};

}  // namespace sluice
