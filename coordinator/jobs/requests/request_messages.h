#pragma once

#include <nlohmann/json.hpp>
#include <variant>

#include "coordinator/jobs/requests/line_error.h"
#include "runtime/text/chat_template.h"

namespace sluice {

// Checks OpenAI's `messages` and gives them as `chat_template` takes them, with
// their names in the same order. A message has a role (system, developer, user,
// assistant, tool), content (a string, or a list of text parts) and maybe name,
// tool_calls, tool_call_id, reasoning_content, reasoning. Any other name that
// says something is an error; one that is null or an empty list says nothing
// and is left out, but for a content of null.
//
// Text parts stay a list where the template puts lists together, as with
// Hugging Face; for other templates newlines join them. The arguments of tool
// calls, in which OpenAI writes JSON as a string, become what they mean, unless
// the template wants the string.
std::variant<nlohmann::ordered_json, LineError> ReadMessages(
    const nlohmann::ordered_json& messages, const ChatTemplate& chat_template);

}  // namespace sluice
