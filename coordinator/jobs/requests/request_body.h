#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/jobs/requests/json_line.h"
#include "coordinator/request.h"

namespace sluice {

// The bounds of sampling parameters, for requests and for a job's defaults.
inline constexpr double kMaxTemperature = 2;
inline constexpr double kMaxRepetitionPenalty = 10;
inline constexpr double kMaxAlterationPenalty = 2;  // presence, frequency: +-
inline constexpr double kMaxLogitBias = 100;        // +-
inline constexpr size_t kMaxStopStrings = 16;
inline constexpr size_t kMaxStopBytes = 1024;
inline constexpr size_t kMaxStopTokens = 256;
inline constexpr int32_t kMaxChoices = 128;
inline constexpr double kMaxLengthPenalty = 10;  // +-

// The body of a request, each field checked by itself; absent ones are empty.
struct RequestBody {
  std::optional<std::string> model;
  nlohmann::ordered_json messages;  // null if absent; otherwise not checked yet
  // Of embeddings, their input. Null if absent; otherwise not checked yet.
  nlohmann::ordered_json prompt;
  // The chat template's variables beside the messages: tools, documents,
  // reasoning_effort and all of chat_template_kwargs.
  nlohmann::ordered_json template_variables = nlohmann::ordered_json::object();
  bool add_generation_prompt = true;

  std::optional<int64_t> max_tokens;
  std::optional<float> temperature;
  std::optional<float> top_p;
  std::optional<int32_t> top_k;
  std::optional<float> min_p;
  std::optional<float> repetition_penalty;
  float presence_penalty = 0;
  float frequency_penalty = 0;
  std::vector<std::pair<int32_t, float>> logit_bias;
  std::optional<uint64_t> seed;  // a negative one is none, as in vLLM
  std::vector<std::string> stop;
  std::vector<int32_t> stop_token_ids;
  std::optional<bool> ignore_eos;
  int32_t logprobs = -1;            // as in SamplingParams
  int32_t choices = 1;              // n
  int32_t candidates = 1;           // best_of, or else n; no fewer than choices
  std::optional<BeamParams> beams;  // use_beam_search
  bool echo = false;
  // Of a prompt, this many tokens are kept, the last ones; kKeepWhatFits: as
  // many as the model takes; 0: all.
  static constexpr int32_t kKeepWhatFits = -1;
  int32_t truncate_prompt_tokens = 0;

  int32_t dimensions = 0;  // 0: all
  bool base64 = false;     // encoding_format

  std::vector<std::string> queries;    // and text_1
  std::vector<std::string> documents;  // and text_2, of scores
  std::optional<std::string> instruction;
  int32_t top_n = 0;
  bool return_documents = true;
};

// Reads a body (an object) for `endpoint`. Fields: OpenAI's for this endpoint,
// and top_k, min_p, repetition_penalty, ignore_eos, add_generation_prompt,
// documents, chat_template_kwargs, stop_token_ids and truncate_prompt_tokens as
// in vLLM. A field that
// is null counts as absent, as does an unknown one that is an empty list or
// object, and one of other APIs with a value that asks for nothing. A field
// that cannot be honoured is an error naming it, but for user, metadata, store
// and service_tier, which have no meaning here. `vocab_size` bounds token ids.
std::optional<LineError> ReadRequestBody(const nlohmann::ordered_json& object,
                                         Endpoint endpoint, int32_t vocab_size,
                                         RequestBody* body);

}  // namespace sluice
