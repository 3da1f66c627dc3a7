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
  std::vector<std::string> own_names;   // the model's own, in their order
  std::map<int32_t, AddedToken> added;  // by their ids
  std::vector<AddedToken> extra_special;
  // Whether a token of added_tokens.json that is an extra one is special: not
  // if special_tokens_map.json says so under the list's old name.
  bool extra_makes_special = true;
  // Whether the files are older than added_tokens_decoder. Then the added
  // tokens of tokenizer.json belong to `added`, too.
  bool legacy = true;
  std::string tokenizer_class;  // "" if not given
  bool add_bos_token = false;
  bool add_eos_token = false;
  std::optional<bool> add_prefix_space;  // if given
  // Whether SentencePiece's space comes before each text between added tokens,
  // and not only before the first: "legacy", if given.
  std::optional<bool> prefix_everywhere;

  // The texts of the existing named tokens.
  std::map<std::string, std::string> SpecialTokens() const;
};

// Returns the tokens that transformers adds to a tokenizer which has the tokens
// `present`, in this order: those of `added` that are not there as they are,
// then named tokens, which are special, and extra ones, that are neither.
std::vector<AddedToken> TokensToAdd(const TokenizerConfig& config,
                                    const std::vector<AddedToken>& present);

// Reads the files; missing ones count as empty.
absl::StatusOr<TokenizerConfig> ReadTokenizerConfig(
    const std::filesystem::path& model_dir);

}  // namespace sluice
