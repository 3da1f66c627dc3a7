#pragma once

#include <nlohmann/json.hpp>
#include <variant>

#include "coordinator/jobs/requests/json_line.h"
#include "runtime/text/chat_template.h"

namespace sluice {

// Checks OpenAI's `messages` and converts them for `chat_template`, with names
// in the same order. A message has a role (system, developer, user, assistant,
// tool), content (a string, or a list of text parts) and maybe name,
// tool_calls, tool_call_id, reasoning_content, reasoning. Any other name is an
// error, unless its value is null or an empty list; such values are left out,
// except a content of null.
//
// Text parts stay a list if the template joins lists itself, as with Hugging
// Face; for other templates newlines join them. The arguments of tool calls,
// which OpenAI writes as a string of JSON, are parsed, unless the template
// wants the string.
std::variant<nlohmann::ordered_json, LineError> ReadMessages(
    const nlohmann::ordered_json& messages, const ChatTemplate& chat_template);

}  // namespace sluice
