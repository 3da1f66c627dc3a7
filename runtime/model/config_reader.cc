#include "runtime/model/config_reader.h"

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace sluice {
namespace {

// Returns a short text of a value for messages.
std::string Show(const nlohmann::json& value) {
  if (value.is_structured()) return absl::StrCat("of type ", value.type_name());
  std::string text =
      value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  return text;
}

}  // namespace

const char* ConfigReader::NameOf(const char* key) const {
  for (const Alias& alias : aliases_) {
    if (absl::string_view(alias.key) == key && object_.contains(alias.own)) {
      return alias.own;
    }
  }
  return key;
}

const nlohmann::json* ConfigReader::Find(const char* key) const {
  const auto it = object_.find(NameOf(key));
  return it == object_.end() ? nullptr : &*it;
}

bool ConfigReader::Has(const char* key) const {
  const nlohmann::json* value = Find(key);
  return value != nullptr && !value->is_null();
}

void ConfigReader::Fail(const char* key, const std::string& problem) {
  if (!status_.ok()) return;
  status_ = InvalidArgument(prefix_, NameOf(key), " ", problem);
}

void ConfigReader::Unsupported(const char* key, const std::string& what) {
  if (!status_.ok()) return;
  status_ = Unimplemented(prefix_, NameOf(key), " ", what, " is not supported");
}

std::optional<int32_t> ConfigReader::ToInt(const char* key,
                                           const nlohmann::json& value,
                                           int32_t min, int32_t max) {
  if (!value.is_number_integer()) {
    Fail(key, absl::StrCat("must be an integer, but is ", Show(value)));
    return std::nullopt;
  }
  const bool in_range =
      value.is_number_unsigned()
          ? max >= 0 && value.get<uint64_t>() <= static_cast<uint64_t>(max) &&
                static_cast<int64_t>(value.get<uint64_t>()) >= min
          : value.get<int64_t>() >= min && value.get<int64_t>() <= max;
  if (!in_range) {
    Fail(key, absl::StrCat("must be in [", min, ", ", max, "], but is ",
                           Show(value)));
    return std::nullopt;
  }
  return static_cast<int32_t>(value.get<int64_t>());
}

std::optional<double> ConfigReader::ToNumber(const char* key,
                                             const nlohmann::json& value,
                                             double min, double max) {
  if (!value.is_number()) {
    Fail(key, absl::StrCat("must be a number, but is ", Show(value)));
    return std::nullopt;
  }
  const double number = value.get<double>();
  if (!(number >= min && number <= max)) {
    Fail(key, absl::StrCat("must be in [", min, ", ", max, "], but is ",
                           Show(value)));
    return std::nullopt;
  }
  return number;
}

int32_t ConfigReader::Int(const char* key, int32_t fallback, int32_t min,
                          int32_t max) {
  const nlohmann::json* value = Find(key);
  if (value == nullptr) return fallback;
  return ToInt(key, *value, min, max).value_or(fallback);
}

double ConfigReader::Number(const char* key, double fallback, double min,
                            double max) {
  const nlohmann::json* value = Find(key);
  if (value == nullptr) return fallback;
  return ToNumber(key, *value, min, max).value_or(fallback);
}

const nlohmann::json* ConfigReader::OfType(const char* key,
                                           bool (nlohmann::json::*is_type)()
                                               const,
                                           absl::string_view must_be) {
  const nlohmann::json* value = Find(key);
  if (value == nullptr || (value->*is_type)()) return value;
  Fail(key, absl::StrCat("must be ", must_be, ", but is ", Show(*value)));
  return nullptr;
}

bool ConfigReader::Bool(const char* key, bool fallback) {
  const auto* value = OfType(key, &nlohmann::json::is_boolean, "true or false");
  return value == nullptr ? fallback : value->get<bool>();
}

std::string ConfigReader::String(const char* key, const std::string& fallback) {
  const auto* value = OfType(key, &nlohmann::json::is_string, "a string");
  return value == nullptr ? fallback : value->get<std::string>();
}

std::optional<int32_t> ConfigReader::OptionalInt(const char* key, int32_t min,
                                                 int32_t max) {
  if (!Has(key)) return std::nullopt;
  return ToInt(key, *Find(key), min, max);
}

std::optional<double> ConfigReader::OptionalNumber(const char* key, double min,
                                                   double max) {
  if (!Has(key)) return std::nullopt;
  return ToNumber(key, *Find(key), min, max);
}

std::optional<std::vector<int32_t>> ConfigReader::OptionalInts(const char* key,
                                                               int32_t min,
                                                               int32_t max) {
  if (!Has(key)) return std::nullopt;
  const nlohmann::json& value = *Find(key);
  std::vector<int32_t> numbers;
  for (const nlohmann::json& element :
       value.is_array() ? value : nlohmann::json::array({value})) {
    const std::optional<int32_t> number = ToInt(key, element, min, max);
    if (!number) return std::nullopt;
    numbers.push_back(*number);
  }
  return numbers;
}

const nlohmann::json* ConfigReader::OptionalObject(const char* key) {
  if (!Has(key)) return nullptr;
  return OfType(key, &nlohmann::json::is_object, "an object");
}

const nlohmann::json* ConfigReader::OptionalArray(const char* key) {
  if (!Has(key)) return nullptr;
  return OfType(key, &nlohmann::json::is_array, "a list");
}

}  // namespace sluice
