#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace sluice {

// The defaults of requests in generation_config.json; all empty if there is no
// file.
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
  // Keys, with their values, with which Hugging Face would give other answers
  // than the members above: "no_repeat_ngram_size 3".
  std::vector<std::string> unsupported;
};

// kInvalidArgument names the key that is of the wrong type or out of range.
absl::StatusOr<GenerationDefaults> ParseGenerationDefaults(
    const nlohmann::json& config);

}  // namespace sluice
