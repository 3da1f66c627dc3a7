#include "coordinator/jobs/requests/request_messages.h"

#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/text/text.h"
#include "coordinator/jobs/requests/json_line.h"

namespace sluice {
namespace {

using json = nlohmann::ordered_json;

LineError Wrong(std::string param, absl::string_view what,
                absl::string_view code = "invalid_request") {
  return LineError{std::string(code), absl::StrCat("\"", param, "\" ", what),
                   std::move(param)};
}

// Checks a list of at least one text part.
std::optional<LineError> CheckParts(const json& content,
                                    const std::string& param) {
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
  }
  return std::nullopt;
}

std::string JoinParts(const json& content) {
  std::string text;
  for (size_t i = 0; i < content.size(); ++i) {
    if (i > 0) text += "\n";
    text += content[i]["text"].get_ref<const std::string&>();
  }
  return text;
}

// Parses a tool call's arguments to an object. They may be one already; missing
// or "" gives an empty one.
std::optional<LineError> ReadArguments(const std::string& param,
                                       json* function) {
  json& arguments = (*function)["arguments"];
  if (arguments.is_object()) return std::nullopt;
  if (arguments.is_null() || arguments == "") {
    arguments = json::object();
    return std::nullopt;
  }
  if (!arguments.is_string()) {
    return Wrong(param + ".arguments",
                 absl::StrCat("must be JSON in a string, or an object, got ",
                              DescribeJson(arguments)));
  }
  auto parsed = ParseJsonLine(arguments.get_ref<const std::string&>());
  if (auto* error = std::get_if<LineError>(&parsed)) {
    return Wrong(param + ".arguments", absl::StrCat("is ", error->message));
  }
  arguments = std::move(std::get<json>(parsed));
  return std::nullopt;
}

// Reads [{"id", "type": "function", "function": {"name", "arguments"}}].
std::optional<LineError> ReadToolCalls(const std::string& param,
                                       bool text_arguments, json* calls) {
  if (!calls->is_array()) {
    return Wrong(param, absl::StrCat("must be a list of calls, got ",
                                     DescribeJson(*calls)));
  }
  for (size_t i = 0; i < calls->size(); ++i) {
    json& call = (*calls)[i];
    const std::string where = absl::StrCat(param, "[", i, "]");
    if (!call.is_object()) return Wrong(where, "must be an object");
    const auto function = call.find("function");
    if (function == call.end() || !function->is_object()) {
      return Wrong(where, "has no \"function\" with \"name\" and \"arguments\"",
                   "missing_field");
    }
    if (text_arguments) continue;
    if (auto error = ReadArguments(where + ".function", &*function)) {
      return error;
    }
  }
  return std::nullopt;
}

// Whether a value is null or an empty list, and so counts as absent.
bool SaysNothing(const json& value) {
  return value.is_null() || (value.is_array() && value.empty());
}

class MessageReader {
 public:
  explicit MessageReader(const ChatTemplate& chat_template)
      : template_(chat_template) {}

  std::optional<LineError> Read(const json& message, const std::string& param,
                                json* out) const;

 private:
  std::optional<LineError> ReadContent(const json& role,
                                       const std::string& param,
                                       json* content) const;

  const ChatTemplate& template_;
};

std::optional<LineError> MessageReader::ReadContent(const json& role,
                                                    const std::string& param,
                                                    json* content) const {
  if (content->is_string()) return std::nullopt;
  if (!content->is_array() || content->empty()) {
    return Wrong(param,
                 absl::StrCat("must be a string or a list of parts "
                              "{\"type\": \"text\", \"text\": ...}, got ",
                              DescribeJson(*content)));
  }
  if (auto error = CheckParts(*content, param)) return error;
  if (!template_.TakesParts(role.get_ref<const std::string&>())) {
    *content = JoinParts(*content);
  }
  return std::nullopt;
}

std::optional<LineError> MessageReader::Read(const json& message,
                                             const std::string& param,
                                             json* out) const {
  if (!message.is_object()) return Wrong(param, "must be an object");
  const auto role = message.find("role");
  if (role == message.end()) {
    return Wrong(param, "has no \"role\"", "missing_field");
  }
  if (*role != "system" && *role != "developer" && *role != "user" &&
      *role != "assistant" && *role != "tool") {
    return Wrong(param + ".role",
                 absl::StrCat("must be system, developer, user, assistant or "
                              "tool, got ",
                              DescribeJson(*role)));
  }
  *out = json::object();
  for (const auto& [name, value] : message.items()) {
    const std::string where = absl::StrCat(param, ".", name);
    json mine = value;
    if (name == "content") {
      // Beside tool calls, content may be absent.
      const bool none = mine.is_null() && *role == "assistant";
      if (!none) {
        if (auto error = ReadContent(*role, where, &mine)) return error;
      }
    } else if (SaysNothing(value)) {
      continue;
    } else if (name == "tool_calls" && *role == "assistant") {
      if (auto error =
              ReadToolCalls(where, template_.TakesArgumentsAsText(), &mine)) {
        return error;
      }
    } else if (name == "name" ||
               ((name == "reasoning_content" || name == "reasoning") &&
                *role == "assistant") ||
               (name == "tool_call_id" && *role == "tool")) {
      if (!value.is_string()) {
        return Wrong(
            where, absl::StrCat("must be a string, got ", DescribeJson(value)));
      }
    } else if (name != "role") {
      return LineError{
          "unknown_field",
          absl::StrCat(
              "\"", param, "\" has the field ", QuoteForMessage(name),
              ", which is not supported for this role; a message has role, "
              "content and name, an assistant's also tool_calls and "
              "reasoning_content, a tool's tool_call_id"),
          param};
    }
    (*out)[name] = std::move(mine);
  }
  const auto content = out->find("content");
  if ((content == out->end() || content->is_null()) &&
      !out->contains("tool_calls")) {
    return Wrong(param, "has no \"content\"", "missing_field");
  }
  return std::nullopt;
}

}  // namespace

std::variant<json, LineError> ReadMessages(const json& messages,
                                           const ChatTemplate& chat_template) {
  if (!messages.is_array() || messages.empty()) {
    return Wrong("messages",
                 absl::StrCat("must be a list of at least one message, got ",
                              DescribeJson(messages)));
  }
  const MessageReader reader(chat_template);
  json result = json::array();
  for (size_t i = 0; i < messages.size(); ++i) {
    json message;
    if (auto error = reader.Read(messages[i], absl::StrCat("messages[", i, "]"),
                                 &message)) {
      return *std::move(error);
    }
    result.push_back(std::move(message));
  }
  return result;
}

}  // namespace sluice
