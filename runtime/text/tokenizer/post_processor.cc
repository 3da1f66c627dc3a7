#include "runtime/text/tokenizer/post_processor.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "common/status_macros.h"

namespace sluice {
namespace {

constexpr size_t kMaxIds = 1 << 16;

absl::StatusOr<int32_t> IdFromJson(const JsonPart& part) {
  SLUICE_ASSIGN_OR_RETURN(const int64_t id, part.Int(0, INT32_MAX));
  return static_cast<int32_t>(id);
}

// Reads the id in ["<s>", 1].
absl::StatusOr<int32_t> IdOfPair(const JsonPart& part) {
  SLUICE_RETURN_IF_ERROR(part.ExpectArray());
  if (part.value().size() != 2) return part.Invalid("is not [token, id]");
  return IdFromJson(part.At(1));
}

// The ids of a template's special token.
absl::StatusOr<std::vector<int32_t>> SpecialIds(const JsonPart& processor,
                                                const JsonPart& name_part) {
  SLUICE_ASSIGN_OR_RETURN(const std::string name, name_part.String());
  SLUICE_ASSIGN_OR_RETURN(const JsonPart tokens,
                          processor.Get("special_tokens"));
  SLUICE_ASSIGN_OR_RETURN(const auto token, tokens.Find(name));
  if (!token) {
    return name_part.Invalid("\"", name, "\" is not among special_tokens");
  }
  SLUICE_ASSIGN_OR_RETURN(const JsonPart list, token->Get("ids"));
  SLUICE_RETURN_IF_ERROR(list.ExpectArray());
  if (list.value().size() > kMaxIds) return list.Invalid("is too long");
  std::vector<int32_t> ids;
  for (size_t i = 0; i < list.value().size(); ++i) {
    SLUICE_ASSIGN_OR_RETURN(const int32_t id, IdFromJson(list.At(i)));
    ids.push_back(id);
  }
  return ids;
}

}  // namespace

absl::Status PostProcessor::Append(const JsonPart& part, int depth,
                                   std::vector<Template>* out) {
  if (depth > kMaxNestedParts) return part.Invalid("nested too deeply");
  SLUICE_ASSIGN_OR_RETURN(const JsonPart type_part, part.Get("type"));
  SLUICE_ASSIGN_OR_RETURN(const std::string type, type_part.String());
  if (type == "ByteLevel") return absl::OkStatus();  // moves offsets only
  if (type == "Sequence") {
    SLUICE_ASSIGN_OR_RETURN(const auto list, part.GetList("processors"));
    for (const JsonPart& element : list) {
      SLUICE_RETURN_IF_ERROR(Append(element, depth + 1, out));
    }
    return absl::OkStatus();
  }
  if (type == "BertProcessing" || type == "RobertaProcessing") {
    SLUICE_ASSIGN_OR_RETURN(const JsonPart cls_part, part.Get("cls"));
    SLUICE_ASSIGN_OR_RETURN(const int32_t cls, IdOfPair(cls_part));
    SLUICE_ASSIGN_OR_RETURN(const JsonPart sep_part, part.Get("sep"));
    SLUICE_ASSIGN_OR_RETURN(const int32_t sep, IdOfPair(sep_part));
    out->push_back({{false, {cls}}, {true, {}}, {false, {sep}}});
    return absl::OkStatus();
  }
  if (type != "TemplateProcessing") {
    return type_part.Unimplemented("post-processor \"", type,
                                   "\" is not supported");
  }
  SLUICE_ASSIGN_OR_RETURN(const JsonPart single, part.Get("single"));
  SLUICE_ASSIGN_OR_RETURN(const auto items, single.Elements());
  Template parts;
  int texts = 0;
  size_t count = 0;
  for (const JsonPart& item : items) {
    SLUICE_ASSIGN_OR_RETURN(const auto special, item.Find("SpecialToken"));
    SLUICE_ASSIGN_OR_RETURN(const auto sequence, item.Find("Sequence"));
    if (special) {
      SLUICE_ASSIGN_OR_RETURN(const JsonPart id, special->Get("id"));
      SLUICE_ASSIGN_OR_RETURN(std::vector<int32_t> ids, SpecialIds(part, id));
      count += ids.size();
      if (count > kMaxIds) return single.Invalid("is too long");
      parts.push_back({false, std::move(ids)});
    } else if (sequence) {
      SLUICE_ASSIGN_OR_RETURN(const JsonPart id, sequence->Get("id"));
      SLUICE_ASSIGN_OR_RETURN(const std::string name, id.String());
      if (name != "A") return id.Invalid("is not \"A\"");
      parts.push_back({true, {}});
      ++texts;
    } else {
      return item.Invalid("has neither \"SpecialToken\" nor \"Sequence\"");
    }
  }
  // Each processor of a sequence with the text twice would double its length.
  if (texts != 1) return single.Unimplemented("does not have one sequence");
  out->push_back(std::move(parts));
  return absl::OkStatus();
}

absl::StatusOr<PostProcessor> PostProcessor::FromJson(const JsonPart& part) {
  PostProcessor processor;
  SLUICE_RETURN_IF_ERROR(Append(part, 0, &processor.templates_));
  return processor;
}

PostProcessor PostProcessor::Around(std::vector<int32_t> before,
                                    std::vector<int32_t> behind) {
  PostProcessor processor;
  processor.templates_.push_back(
      {{false, std::move(before)}, {true, {}}, {false, std::move(behind)}});
  return processor;
}

std::vector<int32_t> PostProcessor::Apply(std::vector<int32_t> ids,
                                          bool add_special_tokens) const {
  if (!add_special_tokens) return ids;
  for (const Template& parts : templates_) {
    std::vector<int32_t> out;
    for (const Part& part : parts) {
      const std::vector<int32_t>& from = part.text ? ids : part.ids;
      out.insert(out.end(), from.begin(), from.end());
    }
    ids = std::move(out);
  }
  return ids;
}

}  // namespace sluice
