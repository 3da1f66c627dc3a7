#include <nlohmann/json.hpp>

#include "common/status_macros.h"
#include "runtime/text/tokenizer/models/bpe_model.h"

namespace sluice {
namespace {

// Reads ["a", "b"] or "a b".
std::optional<BpeModel::Merge> MergeFromJson(const nlohmann::json& value) {
  if (value.is_array() && value.size() == 2 && value[0].is_string() &&
      value[1].is_string()) {
    return BpeModel::Merge(value[0].get<std::string>(),
                           value[1].get<std::string>());
  }
  if (value.is_string()) {
    const auto& text = value.get_ref<const std::string&>();
    const size_t space = text.find(' ');
    if (space != text.npos && text.find(' ', space + 1) == text.npos) {
      return BpeModel::Merge(text.substr(0, space), text.substr(space + 1));
    }
  }
  return std::nullopt;
}

absl::StatusOr<std::vector<BpeModel::Merge>> MergesFromJson(
    const JsonPart& part) {
  SLUICE_RETURN_IF_ERROR(part.ExpectArray());
  std::vector<BpeModel::Merge> merges;
  merges.reserve(part.value().size());
  for (size_t i = 0; i < part.value().size(); ++i) {
    const nlohmann::json& value = part.value()[i];
    if (value.is_string() &&
        value.get_ref<const std::string&>().rfind("#version", 0) == 0) {
      continue;
    }
    std::optional<BpeModel::Merge> merge = MergeFromJson(value);
    if (!merge) return part.At(i).Invalid("is not two tokens");
    merges.push_back(*std::move(merge));
  }
  return merges;
}

}  // namespace

absl::StatusOr<BpeModel::Vocabulary> BpeModel::VocabularyFromJson(
    const JsonPart& part) {
  SLUICE_RETURN_IF_ERROR(part.ExpectObject());
  BpeModel::Vocabulary vocabulary;
  vocabulary.reserve(part.value().size());
  for (const auto& [token, id] : part.value().items()) {
    if (!id.is_number_integer() || id.get<int64_t>() < 0 ||
        id.get<int64_t>() > BpeModel::kMaxId) {
      return part.Invalid("id of \"", token, "\" is not an integer in 0..",
                          BpeModel::kMaxId);
    }
    vocabulary.emplace(token, id.get<int32_t>());
  }
  return vocabulary;
}

absl::StatusOr<bool> BpeModel::CanReadBytes(const JsonPart& part) {
  SLUICE_ASSIGN_OR_RETURN(const std::string prefix,
                          part.StringOr("continuing_subword_prefix", ""));
  SLUICE_ASSIGN_OR_RETURN(const std::string suffix,
                          part.StringOr("end_of_word_suffix", ""));
  return prefix.empty() && suffix.empty();
}

absl::StatusOr<std::unique_ptr<BpeModel>> BpeModel::FromJson(
    const JsonPart& part, bool byte_words) {
  SLUICE_ASSIGN_OR_RETURN(const auto dropout, part.Find("dropout"));
  if (dropout && !(dropout->value().is_number() && dropout->value() == 0)) {
    return dropout->Unimplemented("dropout is not supported");
  }
  Options options;
  options.byte_words = byte_words;
  SLUICE_ASSIGN_OR_RETURN(const auto unk, part.Find("unk_token"));
  options.has_unk_token = unk.has_value();
  SLUICE_ASSIGN_OR_RETURN(options.unk_token, part.StringOr("unk_token", ""));
  SLUICE_ASSIGN_OR_RETURN(options.continuing_subword_prefix,
                          part.StringOr("continuing_subword_prefix", ""));
  SLUICE_ASSIGN_OR_RETURN(options.end_of_word_suffix,
                          part.StringOr("end_of_word_suffix", ""));
  SLUICE_ASSIGN_OR_RETURN(options.fuse_unk, part.BoolOr("fuse_unk", false));
  SLUICE_ASSIGN_OR_RETURN(options.byte_fallback,
                          part.BoolOr("byte_fallback", false));
  SLUICE_ASSIGN_OR_RETURN(options.ignore_merges,
                          part.BoolOr("ignore_merges", false));
  SLUICE_ASSIGN_OR_RETURN(const JsonPart vocab_part, part.Get("vocab"));
  SLUICE_ASSIGN_OR_RETURN(Vocabulary vocabulary,
                          VocabularyFromJson(vocab_part));
  SLUICE_ASSIGN_OR_RETURN(const JsonPart merges_part, part.Get("merges"));
  SLUICE_ASSIGN_OR_RETURN(const std::vector<Merge> merges,
                          MergesFromJson(merges_part));
  return Annotate(Create(std::move(options), std::move(vocabulary), merges),
                  part.where());
}

}  // namespace sluice
