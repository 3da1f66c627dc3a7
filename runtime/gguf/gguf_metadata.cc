#include "runtime/gguf/gguf_metadata.h"

#include <utility>

#include "common/status_macros.h"
#include "common/text/text.h"

namespace sluice {
namespace {

absl::Status WrongType(absl::string_view key, absl::string_view must_be) {
  return InvalidArgument("metadata ", QuoteForMessage(key), " must be ",
                         must_be);
}

template <typename T>
const std::vector<T>& Empty() {
  static const auto* const kEmpty = new std::vector<T>();
  return *kEmpty;
}

}  // namespace

bool GgufMetadata::Add(std::string key, GgufValue value) {
  return values_.emplace(std::move(key), std::move(value)).second;
}

const GgufValue* GgufMetadata::Find(absl::string_view key) const {
  const auto it = values_.find(std::string_view(key.data(), key.size()));
  return it == values_.end() ? nullptr : &it->second;
}

absl::StatusOr<std::optional<int64_t>> GgufMetadata::Int(
    absl::string_view key) const {
  const GgufValue* const value = Find(key);
  if (value == nullptr) return std::nullopt;
  if (const auto* number = std::get_if<int64_t>(value)) return *number;
  if (const auto* flag = std::get_if<bool>(value)) return *flag ? 1 : 0;
  return WrongType(key, "an integer");
}

absl::StatusOr<std::optional<double>> GgufMetadata::Number(
    absl::string_view key) const {
  const GgufValue* const value = Find(key);
  if (value == nullptr) return std::nullopt;
  if (const auto* number = std::get_if<double>(value)) return *number;
  if (const auto* number = std::get_if<int64_t>(value)) {
    return static_cast<double>(*number);
  }
  return WrongType(key, "a number");
}

absl::StatusOr<std::optional<bool>> GgufMetadata::Bool(
    absl::string_view key) const {
  const GgufValue* const value = Find(key);
  if (value == nullptr) return std::nullopt;
  if (const auto* flag = std::get_if<bool>(value)) return *flag;
  return WrongType(key, "true or false");
}

absl::StatusOr<std::optional<std::string>> GgufMetadata::String(
    absl::string_view key) const {
  const GgufValue* const value = Find(key);
  if (value == nullptr) return std::nullopt;
  if (const auto* text = std::get_if<std::string>(value)) return *text;
  return WrongType(key, "a string");
}

absl::StatusOr<std::vector<int64_t>> GgufMetadata::Ints(
    absl::string_view key) const {
  const GgufValue* const value = Find(key);
  if (value == nullptr) return std::vector<int64_t>();
  if (const auto* number = std::get_if<int64_t>(value)) {
    return std::vector<int64_t>{*number};
  }
  if (const auto* list = std::get_if<std::vector<int64_t>>(value)) return *list;
  return WrongType(key, "an integer or a list of integers");
}

absl::StatusOr<const std::vector<std::string>*> GgufMetadata::Strings(
    absl::string_view key) const {
  const GgufValue* const value = Find(key);
  if (value == nullptr) return &Empty<std::string>();
  if (const auto* list = std::get_if<std::vector<std::string>>(value)) {
    return list;
  }
  return WrongType(key, "a list of strings");
}

absl::StatusOr<const std::vector<double>*> GgufMetadata::Numbers(
    absl::string_view key) const {
  const GgufValue* const value = Find(key);
  if (value == nullptr) return &Empty<double>();
  if (const auto* list = std::get_if<std::vector<double>>(value)) return list;
  return WrongType(key, "a list of numbers");
}

}  // namespace sluice
