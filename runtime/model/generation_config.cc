#include "runtime/model/generation_config.h"

#include <limits>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "runtime/model/config_reader.h"

namespace sluice {
namespace {

using nlohmann::json;

constexpr int32_t kTopKOfHuggingFace = 50;  // with do_sample and no top_k

// A key that changes answers in Hugging Face's generate() and has no
// counterpart here. Null, an empty list or object and `off` change nothing.
// Keys that change only the speed of beams or assistants are left out.
struct Key {
  const char* name;
  std::optional<double> off;
  bool only_sampling = false;
};
const Key kUnsupported[] = {
    {"bad_words_ids", {}},
    {"begin_suppress_tokens", {}},
    {"constraints", {}},
    {"dola_layers", {}},
    {"encoder_no_repeat_ngram_size", 0},
    {"encoder_repetition_penalty", 1},
    {"epsilon_cutoff", 0, true},
    {"eta_cutoff", 0, true},
    {"exponential_decay_length_penalty", {}},
    {"force_words_ids", {}},
    {"forced_bos_token_id", {}},
    {"forced_decoder_ids", {}},
    {"forced_eos_token_id", {}},
    {"guidance_scale", 1},
    {"max_time", {}},
    {"min_length", 0},
    {"min_new_tokens", 0},
    {"no_repeat_ngram_size", 0},
    {"num_beam_groups", 1},
    {"num_beams", 1},
    {"num_return_sequences", 1},
    {"penalty_alpha", 0},
    {"sequence_bias", {}},
    {"stop_strings", {}},
    {"suppress_tokens", {}},
    {"token_healing", 0},
    {"top_h", {}, true},
    {"typical_p", 1, true},
    {"watermarking_config", {}},
};

bool IsOff(const json& value, const std::optional<double>& off) {
  if (value.is_null() || (value.is_structured() && value.empty())) return true;
  if (!off) return false;
  if (value.is_boolean()) return value.get<bool>() == (*off != 0);
  return value.is_number() && value.get<double>() == *off;
}

std::vector<std::string> Unsupported(const json& config, bool do_sample) {
  constexpr size_t kMaxShown = 40;
  std::vector<std::string> found;
  for (const Key& key : kUnsupported) {
    const auto it = config.find(key.name);
    if (it == config.end() || IsOff(*it, key.off)) continue;
    if (key.only_sampling && !do_sample) continue;
    std::string value = it->dump(-1, ' ', /*ensure_ascii=*/true,
                                 json::error_handler_t::replace);
    if (value.size() > kMaxShown) value = value.substr(0, kMaxShown) + "...";
    found.push_back(absl::StrCat(key.name, " ", value));
  }
  return found;
}

}  // namespace

absl::StatusOr<GenerationDefaults> ParseGenerationDefaults(const json& config) {
  constexpr int32_t kMaxInt = std::numeric_limits<int32_t>::max();
  ConfigReader reader(config);
  GenerationDefaults defaults;
  const auto number = [&](const char* key, double min, double max) {
    const std::optional<double> value = reader.OptionalNumber(key, min, max);
    return value ? std::optional<float>(static_cast<float>(*value))
                 : std::nullopt;
  };
  if (reader.Has("do_sample")) {
    defaults.do_sample = reader.Bool("do_sample", false);
  }
  defaults.temperature = number("temperature", 0, 1e6);
  defaults.top_k = reader.OptionalInt("top_k", 0, kMaxInt);
  if (defaults.do_sample && !defaults.top_k) {
    defaults.top_k = kTopKOfHuggingFace;
  }
  defaults.top_p = number("top_p", 0, 1);
  defaults.min_p = number("min_p", 0, 1);
  defaults.repetition_penalty = number("repetition_penalty", 1e-6, 1e6);
  defaults.max_new_tokens = reader.OptionalInt("max_new_tokens", 0, kMaxInt);
  defaults.max_length = reader.OptionalInt("max_length", 0, kMaxInt);
  defaults.eos_token_ids = reader.OptionalInts("eos_token_id", -1, kMaxInt)
                               .value_or(std::vector<int32_t>());
  std::erase(defaults.eos_token_ids, -1);
  if (!reader.status().ok()) return reader.status();
  defaults.unsupported = Unsupported(config, defaults.do_sample);
  return defaults;
}

}  // namespace sluice
