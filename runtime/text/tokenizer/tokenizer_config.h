#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/text/tokenizer/added_tokens.h"

namespace sluice {

// The settings in the files beside the vocabulary: tokenizer_config.json,
// special_tokens_map.json and added_tokens.json, merged as in transformers.
struct TokenizerConfig {
  // A named token ("bos_token", ..., and a model's own, as "image_token"):
  // absent if no file has the key, nullopt if it is null.
  std::map<std::string, std::optional<AddedToken>> named;
  std::vector<AddedToken> added;  // by their ids
  std::vector<AddedToken> extra_special;
  // Whether a token of added_tokens.json that is listed in extra_special is
  // special: not if the list has its old name, "additional_special_tokens".
  bool extra_special_makes_special = false;
  std::string tokenizer_class;  // "" if not given
  bool add_bos_token = false;
  bool add_eos_token = false;
  std::optional<bool> add_prefix_space;  // if given

  // The texts of the existing named tokens.
  std::map<std::string, std::string> SpecialTokens() const;
};

// Reads the files; missing ones count as empty.
absl::StatusOr<TokenizerConfig> ReadTokenizerConfig(
    const std::filesystem::path& model_dir);

}  // namespace sluice
