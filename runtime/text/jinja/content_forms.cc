#include "runtime/text/jinja/content_forms.h"

#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "runtime/text/jinja/render.h"

namespace sluice::jinja {
namespace {

using json = nlohmann::ordered_json;

// Texts that no template contains, and that trimming does not change.
constexpr char kFirst[] = "qzfirstpartzq";
constexpr char kSecond[] = "qzsecondpartzq";

// The limits suffice for such short conversations and end long loops soon.
constexpr Limits kLimits = {.work = 500'000, .bytes = uint64_t{4} << 20};

json Message(const char* role, json content) {
  json message = {{"role", role}};
  message["content"] = std::move(content);
  return message;
}

json TextPart(const char* text) { return {{"type", "text"}, {"text", text}}; }

// Some templates want identifiers of nine characters.
json ToolCall(json arguments) {
  json call = {{"id", "call00001"}, {"type", "function"}};
  call["function"] = {{"name", "look_up"}};
  call["function"]["arguments"] = std::move(arguments);
  json message = Message("assistant", "");
  message["tool_calls"].push_back(std::move(call));
  return message;
}

json ToolAnswer(json content) {
  json message = Message("tool", std::move(content));
  message["name"] = "look_up";
  message["tool_call_id"] = "call00001";
  return message;
}

// Makes a usual conversation, except for the content of one message.
json Conversation(const std::string& role, json content) {
  const json question = Message("user", "What is it?");
  if (role == "user") {
    json messages = json::array();
    messages.push_back(Message("user", std::move(content)));
    return messages;
  }
  if (role == "assistant") {
    return json::array(
        {question, Message("assistant", std::move(content)), question});
  }
  if (role == "tool") {
    return json::array(
        {question, ToolCall(json::object()), ToolAnswer(std::move(content))});
  }
  return json::array({Message(role.c_str(), std::move(content)), question});
}

// Renders a conversation; "" if the template refuses it.
std::string Render(const Template& parsed, json messages) {
  const json variables = {{"messages", std::move(messages)},
                          {"add_generation_prompt", true},
                          {"bos_token", "<s>"},
                          {"eos_token", "</s>"}};
  return RenderTemplate(parsed, variables, absl::CivilSecond(2025, 1, 1),
                        kLimits)
      .value_or("");
}

bool TakesParts(const Template& parsed, const std::string& role) {
  const json parts = json::array({TextPart(kFirst), TextPart(kSecond)});
  const std::string text = Render(parsed, Conversation(role, parts));
  // A list that is printed as code, in Python or JSON, contains its keys.
  return absl::StrContains(text, kFirst) && absl::StrContains(text, kSecond) &&
         !absl::StrContains(text, "'text'") &&
         !absl::StrContains(text, "\"text\"");
}

// Whether the arguments are in the text.
bool ShowsArguments(const Template& parsed, json arguments) {
  const json messages =
      json::array({Message("user", "What is it?"),
                   ToolCall(std::move(arguments)), ToolAnswer("That.")});
  return absl::StrContains(Render(parsed, messages), kFirst);
}

}  // namespace

ContentForms FindContentForms(const Template& parsed) {
  ContentForms forms;
  for (const char* role :
       {"system", "developer", "user", "assistant", "tool"}) {
    if (TakesParts(parsed, role)) forms.roles_with_parts.insert(role);
  }
  const json arguments = {{"key", kFirst}};
  forms.text_arguments = !ShowsArguments(parsed, arguments) &&
                         ShowsArguments(parsed, arguments.dump());
  return forms;
}

}  // namespace sluice::jinja
