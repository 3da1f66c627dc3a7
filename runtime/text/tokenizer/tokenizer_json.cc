#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/strip.h"
#include "common/status_macros.h"
#include "runtime/text/tokenizer/json_part.h"
#include "runtime/text/tokenizer/tokenizer_parts.h"

namespace sluice {

namespace {

absl::Status ReadAdded(const JsonPart& root, const TokenizerConfig& config,
                       TokenizerParts* parts) {
  const AddedTokens::Model model = ModelView(parts->model.get());
  SLUICE_ASSIGN_OR_RETURN(const auto list, root.Find("added_tokens"));
  TokenizerConfig all = config;
  std::vector<AddedToken> tokens;
  if (list) {
    SLUICE_ASSIGN_OR_RETURN(const std::vector<JsonPart> parts_of_list,
                            list->Elements());
    for (const JsonPart& part : parts_of_list) {
      SLUICE_ASSIGN_OR_RETURN(AddedToken token,
                              AddedTokenFromJson(part, /*special=*/false));
      SLUICE_ASSIGN_OR_RETURN(const auto id, part.Find("id"));
      if (config.legacy && id) {
        SLUICE_ASSIGN_OR_RETURN(const int64_t number, id->Int(0, INT32_MAX));
        all.added[static_cast<int32_t>(number)] = token;
      }
      tokens.push_back(std::move(token));
    }
    parts->added.Add(tokens, model);
  }
  // Those that only tokenizer_config.json and its kin name or describe.
  parts->added.Add(TokensToAdd(all, tokens), model);
  return Annotate(parts->added.Finish(parts->normalizer), root.where());
}

// Removes a part, or members of a Sequence under `list`, for which keep() is
// false. Broken parts are kept, and reported elsewhere.
template <typename Keep>
void Filter(const char* list, const Keep& keep, nlohmann::json* part) {
  if (!part->is_object()) return;
  const auto members = part->find(list);
  if (members == part->end() || !members->is_array()) {
    if (!keep(*part)) *part = nullptr;
    return;
  }
  nlohmann::json kept = nlohmann::json::array();
  for (nlohmann::json& member : *members) {
    if (!member.is_object() || keep(member)) kept.push_back(std::move(member));
  }
  *members = std::move(kept);
}

// The setting of tokenizer_config.json for a space before the first word
// overrides tokenizer.json's, as in transformers' classes that support it.
void SetPrefixSpace(const TokenizerConfig& config, nlohmann::json* tokenizer) {
  if (!config.add_prefix_space || !tokenizer->is_object()) return;
  const auto type_of = [](const nlohmann::json& part) {
    const auto it = part.find("type");
    return it != part.end() && it->is_string() ? it->get<std::string>() : "";
  };
  absl::string_view name = config.tokenizer_class;
  absl::ConsumeSuffix(&name, "Fast");
  nlohmann::json& pre_tokenizer = (*tokenizer)["pre_tokenizer"];
  if (name == "GPT2Tokenizer") {
    if (pre_tokenizer.is_object() && type_of(pre_tokenizer) == "ByteLevel") {
      pre_tokenizer["add_prefix_space"] = *config.add_prefix_space;
    }
  } else if (name == "LlamaTokenizer" && !*config.add_prefix_space) {
    const auto set_metaspace = [&](nlohmann::json& part) {
      if (!part.is_object() || type_of(part) != "Metaspace") return;
      part["add_prefix_space"] = false;
      part["prepend_scheme"] = "never";
    };
    nlohmann::json& decoder = (*tokenizer)["decoder"];
    set_metaspace(pre_tokenizer);
    set_metaspace(decoder);
    Filter(
        "normalizers",
        [&](const nlohmann::json& part) { return type_of(part) != "Prepend"; },
        &(*tokenizer)["normalizer"]);
    Filter(
        "decoders",
        [&](const nlohmann::json& part) {
          return type_of(part) != "Strip" ||
                 part.value("content", nlohmann::json()) != " ";
        },
        &decoder);
  }
}

}  // namespace

absl::StatusOr<TokenizerParts> ReadTokenizerJson(
    const std::filesystem::path& file, const TokenizerConfig& config) {
  SLUICE_ASSIGN_OR_RETURN(nlohmann::json json,
                          ReadJsonFile(file, kMaxTokenizerFileBytes));
  SetPrefixSpace(config, &json);
  const JsonPart root(&json, file.string());
  SLUICE_ASSIGN_OR_RETURN(const JsonPart model, root.Get("model"));
  TokenizerParts parts;
  SLUICE_ASSIGN_OR_RETURN(const auto normalizer, root.Find("normalizer"));
  if (normalizer) {
    SLUICE_ASSIGN_OR_RETURN(parts.normalizer, CreateNormalizer(*normalizer));
  }
  bool bytes = false;
  SLUICE_ASSIGN_OR_RETURN(const auto pre_tokenizer, root.Find("pre_tokenizer"));
  if (pre_tokenizer) {
    SLUICE_ASSIGN_OR_RETURN(const bool can_read_bytes, CanReadBytes(model));
    SLUICE_ASSIGN_OR_RETURN(
        parts.pre_tokenizer,
        CreatePreTokenizer(*pre_tokenizer, can_read_bytes, &bytes));
  }
  SLUICE_ASSIGN_OR_RETURN(parts.model, TokenModelFromJson(model, bytes));
  SLUICE_ASSIGN_OR_RETURN(const auto post, root.Find("post_processor"));
  if (post) {
    SLUICE_ASSIGN_OR_RETURN(parts.post_processor,
                            PostProcessor::FromJson(*post));
  }
  SLUICE_ASSIGN_OR_RETURN(const auto decoder, root.Find("decoder"));
  if (decoder) {
    SLUICE_ASSIGN_OR_RETURN(parts.decoders, DecodersFromJson(*decoder));
  } else {
    parts.decoders.push_back(SpacesDecoder());
  }
  SLUICE_RETURN_IF_ERROR(ReadAdded(root, config, &parts));
  parts.special_tokens = config.SpecialTokens();
  return parts;
}

}  // namespace sluice
