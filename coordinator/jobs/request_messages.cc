#include "coordinator/jobs/request_messages.h"

#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/jobs/json_line.h"
#include "coordinator/jobs/message_text.h"

namespace sluice {
namespace {

using json = nlohmann::json;

LineError Wrong(std::string param, absl::string_view what,
                absl::string_view code = "invalid_request") {
  return LineError{std::string(code), absl::StrCat("\"", param, "\" ", what),
                   std::move(param)};
}

std::optional<LineError> ReadContent(const json& content,
                                     const std::string& param,
                                     std::string* text) {
  if (content.is_string()) {
    *text = content.get<std::string>();
    return std::nullopt;
  }
  if (!content.is_array() || content.empty()) {
    return Wrong(param,
                 absl::StrCat("must be a string or a list of parts "
                              "{\"type\": \"text\", \"text\": ...}, got ",
                              DescribeJson(content)));
  }
  for (size_t i = 0; i < content.size(); ++i) {
    const json& part = content[i];
    const std::string where = absl::StrCat(param, "[", i, "]");
    if (!part.is_object()) return Wrong(where, "must be an object");
    const auto type = part.find("type");
    if (type == part.end()) {
      return Wrong(where, "has no \"type\"", "missing_field");
    }
    if (*type != "text") {
      return Wrong(where + ".type",
                   absl::StrCat("is ", DescribeJson(*type),
                                ", but only \"text\" is supported"),
                   "unsupported");
    }
    const auto value = part.find("text");
    if (value == part.end()) {
      return Wrong(where, "has no \"text\"", "missing_field");
    }
    if (!value->is_string()) {
      return Wrong(where + ".text", absl::StrCat("must be a string, got ",
                                                 DescribeJson(*value)));
    }
    if (part.size() > 2) {
      return Wrong(where, "has fields besides \"type\" and \"text\"",
                   "unknown_field");
    }
    if (i > 0) *text += "\n";
    *text += value->get_ref<const std::string&>();
  }
  return std::nullopt;
}

std::optional<LineError> ReadMessage(const json& message,
                                     const std::string& param, json* out) {
  if (!message.is_object()) return Wrong(param, "must be an object");
  *out = json::object();
  for (const auto& [name, value] : message.items()) {
    const std::string where = absl::StrCat(param, ".", name);
    if (name == "role") {
      if (value != "system" && value != "developer" && value != "user" &&
          value != "assistant" && value != "tool") {
        return Wrong(where,
                     absl::StrCat("must be system, developer, user, assistant "
                                  "or tool, got ",
                                  DescribeJson(value)));
      }
      (*out)["role"] = value;
    } else if (name == "content") {
      std::string text;
      if (auto error = ReadContent(value, where, &text)) return error;
      (*out)["content"] = std::move(text);
    } else if (name == "name") {
      if (value.is_null()) continue;
      if (!value.is_string()) {
        return Wrong(
            where, absl::StrCat("must be a string, got ", DescribeJson(value)));
      }
      (*out)["name"] = value;
    } else if (!value.is_null()) {
      return LineError{
          "unknown_field",
          absl::StrCat("\"", param, "\" has the field ", QuoteForMessage(name),
                       ", which is not supported; a message has role, "
                       "content and name"),
          param};
    }
  }
  for (const char* required : {"role", "content"}) {
    if (!out->contains(required)) {
      return Wrong(param, absl::StrCat("has no \"", required, "\""),
                   "missing_field");
    }
  }
  return std::nullopt;
}

}  // namespace

std::variant<json, LineError> ReadMessages(const json& messages) {
  if (!messages.is_array() || messages.empty()) {
    return Wrong("messages",
                 absl::StrCat("must be a list of at least one message, got ",
                              DescribeJson(messages)));
  }
  json result = json::array();
  for (size_t i = 0; i < messages.size(); ++i) {
    json message;
    if (auto error = ReadMessage(messages[i], absl::StrCat("messages[", i, "]"),
                                 &message)) {
      return *std::move(error);
    }
    result.push_back(std::move(message));
  }
  return result;
}

}  // namespace sluice
