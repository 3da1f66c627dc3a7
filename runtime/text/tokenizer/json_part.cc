#include "runtime/text/tokenizer/json_part.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "common/host/read_file.h"
#include "common/status_macros.h"
#include "common/text/text.h"
#include "common/text/utf8.h"

namespace sluice {
namespace {

std::string TypeName(const nlohmann::json& value) { return value.type_name(); }

}  // namespace

absl::StatusOr<std::optional<JsonPart>> JsonPart::Find(
    absl::string_view key) const {
  SLUICE_RETURN_IF_ERROR(ExpectObject());
  const auto it = value_->find(std::string(key));
  if (it == value_->end() || it->is_null()) {
    return std::optional<JsonPart>();
  }
  return std::optional<JsonPart>(JsonPart(
      &*it, absl::StrCat(where_, root_ ? ": " : ".", key), /*root=*/false));
}

absl::StatusOr<JsonPart> JsonPart::Get(absl::string_view key) const {
  SLUICE_ASSIGN_OR_RETURN(std::optional<JsonPart> part, Find(key));
  if (!part) return Invalid("\"", key, "\" is missing");
  return *part;
}

absl::StatusOr<std::string> JsonPart::GetString(absl::string_view key) const {
  SLUICE_ASSIGN_OR_RETURN(const JsonPart part, Get(key));
  return part.String();
}

absl::StatusOr<std::vector<JsonPart>> JsonPart::GetList(
    absl::string_view key) const {
  SLUICE_ASSIGN_OR_RETURN(const JsonPart part, Get(key));
  return part.Elements();
}

absl::StatusOr<std::vector<JsonPart>> JsonPart::Elements() const {
  SLUICE_RETURN_IF_ERROR(ExpectArray());
  std::vector<JsonPart> elements;
  for (size_t i = 0; i < value_->size(); ++i) elements.push_back(At(i));
  return elements;
}

JsonPart JsonPart::At(size_t index) const {
  return JsonPart(&(*value_)[index], absl::StrCat(where_, "[", index, "]"),
                  /*root=*/false);
}

absl::StatusOr<std::string> JsonPart::String() const {
  if (!value_->is_string()) {
    return Invalid("is ", TypeName(*value_), ", not a string");
  }
  return value_->get<std::string>();
}

absl::StatusOr<char32_t> JsonPart::Char() const {
  SLUICE_ASSIGN_OR_RETURN(const std::string text, String());
  if (text.empty() || Utf8Length(text[0]) != text.size()) {
    return Invalid("is not one character");
  }
  size_t pos = 0;
  return DecodeUtf8(text, &pos);
}

absl::StatusOr<bool> JsonPart::Bool() const {
  if (!value_->is_boolean()) {
    return Invalid("is ", TypeName(*value_), ", not a boolean");
  }
  return value_->get<bool>();
}

absl::StatusOr<int64_t> JsonPart::Int(int64_t low, int64_t high) const {
  if (!value_->is_number_integer()) {
    return Invalid("is ", TypeName(*value_), ", not an integer");
  }
  const bool huge = value_->is_number_unsigned() &&
                    value_->get<uint64_t>() > static_cast<uint64_t>(INT64_MAX);
  const int64_t number = huge ? INT64_MAX : value_->get<int64_t>();
  if (huge || number < low || number > high) {
    return Invalid("is not in ", low, "..", high);
  }
  return number;
}

absl::Status JsonPart::ExpectArray() const {
  if (value_->is_array()) return absl::OkStatus();
  return Invalid("is ", TypeName(*value_), ", not an array");
}

absl::Status JsonPart::ExpectObject() const {
  if (value_->is_object()) return absl::OkStatus();
  return Invalid("is ", TypeName(*value_), ", not an object");
}

absl::StatusOr<std::string> JsonPart::StringOr(
    absl::string_view key, absl::string_view otherwise) const {
  SLUICE_ASSIGN_OR_RETURN(const std::optional<JsonPart> part, Find(key));
  if (!part) return std::string(otherwise);
  return part->String();
}

absl::StatusOr<bool> JsonPart::BoolOr(absl::string_view key,
                                      bool otherwise) const {
  SLUICE_ASSIGN_OR_RETURN(const std::optional<JsonPart> part, Find(key));
  if (!part) return otherwise;
  return part->Bool();
}

absl::StatusOr<nlohmann::json> ReadJsonFile(const std::filesystem::path& path,
                                            size_t max_bytes) {
  SLUICE_ASSIGN_OR_RETURN(const std::string text,
                          ReadSmallFile(path, max_bytes));
  try {
    return nlohmann::json::parse(text);
  } catch (const nlohmann::json::parse_error& e) {
    return absl::InvalidArgumentError(
        absl::StrCat(path.string(), ": not JSON: ", JsonErrorText(e.what())));
  }
}

}  // namespace sluice
