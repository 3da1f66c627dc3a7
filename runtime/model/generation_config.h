#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace sluice {

// generation_config.json: what requests that do not say get. Absent file: all
// empty.
struct GenerationDefaults {
  // Hugging Face's meaning: greedy unless do_sample is true.
  bool do_sample = false;
  std::optional<float> temperature;
  std::optional<int32_t> top_k;  // with do_sample 50 if the file has none
  std::optional<float> top_p;
  std::optional<float> min_p;
  std::optional<float> repetition_penalty;
  std::optional<int32_t> max_new_tokens;
  std::optional<int32_t> max_length;   // with the prompt; max_new_tokens wins
  std::vector<int32_t> eos_token_ids;  // of this file alone
  // Keys, with their values, by which Hugging Face would give other answers
  // than the above do: "no_repeat_ngram_size 3".
  std::vector<std::string> unsupported;
};

// kInvalidArgument names the key that is of the wrong type or out of range.
absl::StatusOr<GenerationDefaults> ParseGenerationDefaults(
    const nlohmann::json& config);

}  // namespace sluice
