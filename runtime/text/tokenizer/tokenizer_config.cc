#include "runtime/text/tokenizer/tokenizer_config.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "common/host/read_file.h"
#include "common/status_macros.h"
#include "common/text/text.h"
#include "runtime/text/tokenizer/json_part.h"
#include "runtime/text/tokenizer/tokenizer_parts.h"

namespace sluice {
namespace {

constexpr const char* kNames[] = {"bos_token", "eos_token", "unk_token",
                                  "sep_token", "pad_token", "cls_token",
                                  "mask_token"};

// A file, which may be missing, and the order of its names, which a
// nlohmann::json does not keep.
struct ConfigFile {
  std::string name;
  bool map = false;     // special_tokens_map.json, where each object is a token
  nlohmann::json json;  // null: there is no file
  std::vector<std::string> keys;
  std::map<std::string, std::vector<std::string>> members;  // of kDicts

  bool missing() const { return json.is_null(); }
  JsonPart root() const { return JsonPart(&json, name); }
};

// Objects of names and tokens, whose order counts.
constexpr const char* kDicts[] = {"model_specific_special_tokens",
                                  "extra_special_tokens"};

bool IsDict(absl::string_view name) {
  return std::find(std::begin(kDicts), std::end(kDicts), name) !=
         std::end(kDicts);
}

absl::StatusOr<ConfigFile> ReadConfigFile(const std::filesystem::path& path) {
  ConfigFile file{.name = path.string(),
                  .map = path.filename() == "special_tokens_map.json"};
  const absl::StatusOr<std::string> text =
      ReadSmallFile(path, kMaxTokenizerFileBytes);
  if (absl::IsNotFound(text.status())) return file;
  SLUICE_RETURN_IF_ERROR(text.status());
  const auto note = [&file](int depth, nlohmann::json::parse_event_t event,
                            nlohmann::json& value) {
    if (event != nlohmann::json::parse_event_t::key) return true;
    if (depth == 1) {
      file.keys.push_back(value.get<std::string>());
    } else if (depth == 2 && IsDict(file.keys.back())) {
      file.members[file.keys.back()].push_back(value.get<std::string>());
    }
    return true;
  };
  try {
    file.json = nlohmann::json::parse(*text, note);
  } catch (const nlohmann::json::parse_error& e) {
    return InvalidArgument(file.name, ": not JSON: ", JsonErrorText(e.what()));
  }
  return file;
}

bool IsTyped(const nlohmann::json& value) {
  return value.is_object() && value.value("__type", "") == "AddedToken";
}

// Reads "<s>", or {"content": "<s>", ...}, which is special unless it says
// otherwise. One with a "__type" is not normalized only if it says so.
absl::StatusOr<AddedToken> SpecialTokenFromJson(const JsonPart& part) {
  if (part.value().is_string()) {
    AddedToken token;
    SLUICE_ASSIGN_OR_RETURN(token.content, part.String());
    token.special = true;
    token.normalized = false;
    return token;
  }
  return AddedTokenFromJson(part, /*special=*/!IsTyped(part.value()));
}

absl::StatusOr<AddedToken> NamedTokenFromJson(const JsonPart& part) {
  SLUICE_ASSIGN_OR_RETURN(AddedToken token, SpecialTokenFromJson(part));
  token.special = true;
  return token;
}

bool IsToken(const nlohmann::json& value) {
  return value.is_string() || (value.is_object() && value.contains("content") &&
                               value["content"].is_string());
}

absl::Status SetOwn(const std::string& name, const JsonPart& parent,
                    TokenizerConfig* config) {
  SLUICE_ASSIGN_OR_RETURN(const JsonPart part, parent.Get(name));
  SLUICE_ASSIGN_OR_RETURN(config->named[name], NamedTokenFromJson(part));
  std::vector<std::string>& names = config->own_names;
  if (std::find(names.begin(), names.end(), name) == names.end()) {
    names.push_back(name);
  }
  return absl::OkStatus();
}

// Reads a model's own named tokens, which transformers takes from any key with
// the usual suffix, and from two objects of names and tokens. Those that are
// objects themselves come first.
absl::Status ReadOwnTokens(const ConfigFile& file, TokenizerConfig* config) {
  const JsonPart root = file.root();
  for (const bool objects : {true, false}) {
    for (const std::string& name : file.keys) {
      const bool usual = std::find(std::begin(kNames), std::end(kNames),
                                   name) != std::end(kNames);
      const nlohmann::json& value = file.json[name];
      if (usual || !absl::EndsWith(name, "_token")) continue;
      if (value.is_object() != objects || !IsToken(value)) continue;
      if (objects && !file.map && !IsTyped(value)) continue;
      SLUICE_RETURN_IF_ERROR(SetOwn(name, root, config));
    }
  }
  for (const char* dict : kDicts) {
    SLUICE_ASSIGN_OR_RETURN(const auto tokens, root.Find(dict));
    const auto members = file.members.find(dict);
    if (!tokens || !tokens->value().is_object() ||
        members == file.members.end()) {
      continue;
    }
    for (const std::string& name : members->second) {
      if (!IsToken(tokens->value()[name])) continue;
      SLUICE_RETURN_IF_ERROR(SetOwn(name, *tokens, config));
    }
  }
  return absl::OkStatus();
}

// Reads the tokens that have no names, from the first of two lists that has
// some. A map's new list adds to what is there; its old one counts only where
// there is nothing.
absl::Status ReadExtraTokens(const ConfigFile& file, TokenizerConfig* config) {
  std::vector<AddedToken>& extra = config->extra_special;
  for (const char* name :
       {"extra_special_tokens", "additional_special_tokens"}) {
    SLUICE_ASSIGN_OR_RETURN(const auto list, file.root().Find(name));
    if (!list || !list->value().is_array() || list->value().empty()) continue;
    const bool old = absl::StartsWith(name, "additional");
    if (file.map && old && !extra.empty()) break;
    config->extra_makes_special = !file.map || !old;
    for (size_t i = 0; i < list->value().size(); ++i) {
      SLUICE_ASSIGN_OR_RETURN(AddedToken token,
                              SpecialTokenFromJson(list->At(i)));
      extra.push_back(std::move(token));
    }
    break;
  }
  return absl::OkStatus();
}

absl::Status ReadNamedTokens(const ConfigFile& file, TokenizerConfig* config) {
  const JsonPart root = file.root();
  SLUICE_RETURN_IF_ERROR(root.ExpectObject());
  for (const char* name : kNames) {
    if (!root.value().contains(name)) continue;
    SLUICE_ASSIGN_OR_RETURN(const auto part, root.Find(name));
    if (!part) {
      config->named[name] = std::nullopt;
      continue;
    }
    SLUICE_ASSIGN_OR_RETURN(config->named[name], NamedTokenFromJson(*part));
  }
  SLUICE_RETURN_IF_ERROR(ReadExtraTokens(file, config));
  return ReadOwnTokens(file, config);
}

// Reads {"50257": {"content": ...}, ...}.
absl::Status ReadAddedTokensDecoder(const JsonPart& part,
                                    TokenizerConfig* config) {
  SLUICE_RETURN_IF_ERROR(part.ExpectObject());
  for (const auto& item : part.value().items()) {
    int32_t id;
    if (!absl::SimpleAtoi(item.key(), &id) || id < 0) {
      return part.Invalid("\"", item.key(), "\" is not an id");
    }
    SLUICE_ASSIGN_OR_RETURN(const JsonPart token, part.Get(item.key()));
    SLUICE_ASSIGN_OR_RETURN(config->added[id],
                            AddedTokenFromJson(token, /*special=*/false));
  }
  return absl::OkStatus();
}

// Reads {"<mask>": 50264, ...}. A token is special if it is one of the usual
// named ones, or an extra one.
absl::Status ReadAddedTokens(const JsonPart& root, TokenizerConfig* config) {
  SLUICE_RETURN_IF_ERROR(root.ExpectObject());
  for (const auto& item : root.value().items()) {
    SLUICE_ASSIGN_OR_RETURN(const JsonPart part, root.Get(item.key()));
    SLUICE_ASSIGN_OR_RETURN(const int64_t id, part.Int(0, INT32_MAX));
    AddedToken token;
    token.content = item.key();
    for (const char* name : kNames) {
      const auto named = config->named.find(name);
      token.special |= named != config->named.end() && named->second &&
                       named->second->content == token.content;
    }
    for (const AddedToken& extra : config->extra_special) {
      token.special |=
          config->extra_makes_special && extra.content == token.content;
    }
    token.normalized = !token.special;
    config->added[static_cast<int32_t>(id)] = std::move(token);
  }
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

std::vector<AddedToken> TokensToAdd(const TokenizerConfig& config,
                                    const std::vector<AddedToken>& present) {
  std::vector<AddedToken> tokens;
  std::set<std::string> known;
  for (const AddedToken& token : present) known.insert(token.content);
  const auto add = [&](const AddedToken& token) {
    if (known.insert(token.content).second) tokens.push_back(token);
  };
  const std::set<std::string> named = [&] {
    std::set<std::string> texts;
    for (const auto& [name, text] : config.SpecialTokens()) texts.insert(text);
    return texts;
  }();
  for (const auto& [id, token] : config.added) {
    if (std::find(present.begin(), present.end(), token) != present.end()) {
      continue;
    }
    tokens.push_back(token);
    tokens.back().special |= named.contains(token.content);
    known.insert(token.content);
  }
  std::vector<std::string> names(std::begin(kNames), std::end(kNames));
  names.insert(names.end(), config.own_names.begin(), config.own_names.end());
  for (const std::string& name : names) {
    const auto it = config.named.find(name);
    if (it != config.named.end() && it->second) add(*it->second);
  }
  for (const AddedToken& token : config.extra_special) add(token);
  return tokens;
}

absl::StatusOr<TokenizerConfig> ReadTokenizerConfig(
    const std::filesystem::path& model_dir) {
  TokenizerConfig config;
  SLUICE_ASSIGN_OR_RETURN(const ConfigFile file,
                          ReadConfigFile(model_dir / "tokenizer_config.json"));
  if (!file.missing()) {
    const JsonPart root = file.root();
    SLUICE_RETURN_IF_ERROR(ReadNamedTokens(file, &config));
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
    SLUICE_ASSIGN_OR_RETURN(const auto everywhere, root.Find("legacy"));
    if (everywhere) {
      SLUICE_ASSIGN_OR_RETURN(config.prefix_everywhere, everywhere->Bool());
    }
    SLUICE_ASSIGN_OR_RETURN(const auto added,
                            root.Find("added_tokens_decoder"));
    if (added) {
      config.legacy = false;
      SLUICE_RETURN_IF_ERROR(ReadAddedTokensDecoder(*added, &config));
    }
  }
  if (config.legacy) {
    SLUICE_ASSIGN_OR_RETURN(
        const ConfigFile map,
        ReadConfigFile(model_dir / "special_tokens_map.json"));
    if (!map.missing()) SLUICE_RETURN_IF_ERROR(ReadNamedTokens(map, &config));
    SLUICE_ASSIGN_OR_RETURN(const ConfigFile added,
                            ReadConfigFile(model_dir / "added_tokens.json"));
    if (!added.missing()) {
      SLUICE_RETURN_IF_ERROR(ReadAddedTokens(added.root(), &config));
    }
  }
  // A named token that is listed with flags gets them.
  for (auto& [name, token] : config.named) {
    if (!token) continue;
    for (const auto& [id, added] : config.added) {
      if (added.content != token->content) continue;
      token = added;
      token->special = true;
    }
  }
  return config;
}

}  // namespace sluice
