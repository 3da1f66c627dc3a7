#pragma once

#include <nlohmann/json.hpp>
#include <variant>

#include "coordinator/jobs/line_error.h"

namespace sluice {

// Checks OpenAI's `messages` and gives them as chat templates take them: role,
// content as one string (text parts joined by newlines), name if there is one.
// Roles: system, developer, user, assistant, tool. Content other than text and
// tool calls are errors.
std::variant<nlohmann::json, LineError> ReadMessages(
    const nlohmann::json& messages);

}  // namespace sluice
