#include "runtime/text/tokenizer/tokenizer_config.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "common/status_macros.h"
#include "runtime/text/tokenizer/json_part.h"
#include "runtime/text/tokenizer/tokenizer_parts.h"

namespace sluice {
namespace {

constexpr const char* kNames[] = {"bos_token", "eos_token", "unk_token",
                                  "sep_token", "pad_token", "cls_token",
                                  "mask_token"};

// Reads a file; returns null if there is none.
absl::StatusOr<nlohmann::json> ReadOptional(const std::filesystem::path& file) {
  auto json = ReadJsonFile(file, kMaxTokenizerFileBytes);
  if (absl::IsNotFound(json.status())) return nlohmann::json();
  return json;
}

// Reads "<s>" or {"content": "<s>", ...}.
absl::StatusOr<AddedToken> SpecialTokenFromJson(const JsonPart& part) {
  if (part.value().is_string()) {
    AddedToken token;
    SLUICE_ASSIGN_OR_RETURN(token.content, part.String());
    token.special = true;
    token.normalized = false;
    return token;
  }
  SLUICE_ASSIGN_OR_RETURN(AddedToken token,
                          AddedTokenFromJson(part, /*special=*/true));
  token.special = true;
  return token;
}

bool IsToken(const nlohmann::json& value) {
  return value.is_string() || (value.is_object() && value.contains("content") &&
                               value["content"].is_string());
}

// Reads a model's own named tokens, which transformers takes from any key with
// the usual suffix, and from two objects of names and tokens.
absl::Status ReadOwnTokens(const JsonPart& root, TokenizerConfig* config) {
  for (const auto& [name, value] : root.value().items()) {
    const bool usual = std::find(std::begin(kNames), std::end(kNames), name) !=
                       std::end(kNames);
    if (usual || !absl::EndsWith(name, "_token") || !IsToken(value)) continue;
    SLUICE_ASSIGN_OR_RETURN(const JsonPart part, root.Get(name));
    SLUICE_ASSIGN_OR_RETURN(config->named[name], SpecialTokenFromJson(part));
  }
  for (const char* list :
       {"model_specific_special_tokens", "extra_special_tokens"}) {
    SLUICE_ASSIGN_OR_RETURN(const auto tokens, root.Find(list));
    if (!tokens || !tokens->value().is_object()) continue;
    for (const auto& [name, value] : tokens->value().items()) {
      if (!IsToken(value)) continue;
      SLUICE_ASSIGN_OR_RETURN(const JsonPart part, tokens->Get(name));
      SLUICE_ASSIGN_OR_RETURN(config->named[name], SpecialTokenFromJson(part));
    }
  }
  return absl::OkStatus();
}

absl::Status ReadNamedTokens(const JsonPart& root, TokenizerConfig* config) {
  SLUICE_RETURN_IF_ERROR(root.ExpectObject());
  for (const char* name : kNames) {
    if (!root.value().contains(name)) continue;
    SLUICE_ASSIGN_OR_RETURN(const auto part, root.Find(name));
    if (!part) {
      config->named[name] = std::nullopt;
      continue;
    }
    SLUICE_ASSIGN_OR_RETURN(config->named[name], SpecialTokenFromJson(*part));
  }
  for (const char* name :
       {"additional_special_tokens", "extra_special_tokens"}) {
    SLUICE_ASSIGN_OR_RETURN(const auto list, root.Find(name));
    if (!list || !list->value().is_array()) continue;
    config->extra_special.clear();
    config->extra_special_makes_special = name[0] == 'e';
    for (size_t i = 0; i < list->value().size(); ++i) {
      SLUICE_ASSIGN_OR_RETURN(AddedToken token,
                              SpecialTokenFromJson(list->At(i)));
      config->extra_special.push_back(std::move(token));
    }
  }
  return absl::OkStatus();
}

// Reads {"50257": {"content": ...}, ...}.
absl::Status ReadAddedTokensDecoder(const JsonPart& part,
                                    TokenizerConfig* config) {
  SLUICE_RETURN_IF_ERROR(part.ExpectObject());
  std::map<int32_t, AddedToken> by_id;
  for (const auto& item : part.value().items()) {
    int32_t id;
    if (!absl::SimpleAtoi(item.key(), &id) || id < 0) {
      return part.Invalid("\"", item.key(), "\" is not an id");
    }
    SLUICE_ASSIGN_OR_RETURN(const JsonPart token, part.Get(item.key()));
    SLUICE_ASSIGN_OR_RETURN(by_id[id],
                            AddedTokenFromJson(token, /*special=*/false));
  }
  for (auto& [id, token] : by_id) config->added.push_back(std::move(token));
  return absl::OkStatus();
}

// Reads {"<mask>": 50264, ...}.
absl::Status ReadAddedTokens(const JsonPart& root, TokenizerConfig* config) {
  SLUICE_RETURN_IF_ERROR(root.ExpectObject());
  std::map<int64_t, AddedToken> by_id;
  for (const auto& item : root.value().items()) {
    SLUICE_ASSIGN_OR_RETURN(const JsonPart part, root.Get(item.key()));
    SLUICE_ASSIGN_OR_RETURN(const int64_t id, part.Int(0, INT32_MAX));
    AddedToken token;
    token.content = item.key();
    for (const auto& [name, named] : config->named) {
      token.special |= named && named->content == token.content;
    }
    if (config->extra_special_makes_special) {
      for (const AddedToken& extra : config->extra_special) {
        token.special |= extra.content == token.content;
      }
    }
    token.normalized = !token.special;
    by_id[id] = std::move(token);
  }
  for (auto& [id, token] : by_id) config->added.push_back(std::move(token));
  return absl::OkStatus();
}

}  // namespace

std::map<std::string, std::string> TokenizerConfig::SpecialTokens() const {
  std::map<std::string, std::string> texts;
  for (const auto& [name, token] : named) {
    if (token) texts[name] = token->content;
  }
  return texts;
}

absl::StatusOr<TokenizerConfig> ReadTokenizerConfig(
    const std::filesystem::path& model_dir) {
  TokenizerConfig config;
  const auto config_file = model_dir / "tokenizer_config.json";
  SLUICE_ASSIGN_OR_RETURN(const nlohmann::json json, ReadOptional(config_file));
  bool has_added_tokens = false;
  if (!json.is_null()) {
    const JsonPart root(&json, config_file.string());
    SLUICE_RETURN_IF_ERROR(ReadNamedTokens(root, &config));
    SLUICE_RETURN_IF_ERROR(ReadOwnTokens(root, &config));
    SLUICE_ASSIGN_OR_RETURN(config.tokenizer_class,
                            root.StringOr("tokenizer_class", ""));
    SLUICE_ASSIGN_OR_RETURN(config.add_bos_token,
                            root.BoolOr("add_bos_token", false));
    SLUICE_ASSIGN_OR_RETURN(config.add_eos_token,
                            root.BoolOr("add_eos_token", false));
    SLUICE_ASSIGN_OR_RETURN(const auto prefix, root.Find("add_prefix_space"));
    if (prefix) {
      SLUICE_ASSIGN_OR_RETURN(config.add_prefix_space, prefix->Bool());
    }
    SLUICE_ASSIGN_OR_RETURN(const auto added,
                            root.Find("added_tokens_decoder"));
    if (added) {
      has_added_tokens = true;
      SLUICE_RETURN_IF_ERROR(ReadAddedTokensDecoder(*added, &config));
    }
  }
  if (!has_added_tokens) {  // files older than added_tokens_decoder
    const auto map_file = model_dir / "special_tokens_map.json";
    SLUICE_ASSIGN_OR_RETURN(const nlohmann::json map, ReadOptional(map_file));
    if (!map.is_null()) {
      SLUICE_RETURN_IF_ERROR(
          ReadNamedTokens(JsonPart(&map, map_file.string()), &config));
    }
    const auto added_file = model_dir / "added_tokens.json";
    SLUICE_ASSIGN_OR_RETURN(const nlohmann::json added,
                            ReadOptional(added_file));
    if (!added.is_null()) {
      SLUICE_RETURN_IF_ERROR(
          ReadAddedTokens(JsonPart(&added, added_file.string()), &config));
    }
  }
  // A named token that is listed with flags gets them.
  for (auto& [name, token] : config.named) {
    if (!token) continue;
    for (const AddedToken& added : config.added) {
      if (added.content != token->content) continue;
      token = added;
      token->special = true;
    }
  }
  return config;
}

}  // namespace sluice
