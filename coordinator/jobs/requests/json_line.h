#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <variant>

#include "absl/strings/string_view.h"
#include "coordinator/jobs/requests/line_error.h"

namespace sluice {

// Reads one line as one JSON value, names in their order (chat templates show
// it), more strictly than the library does: no name twice in an object, no NUL,
// at most 64 levels and a million values (a line of 16 MB would otherwise need
// 20 times its size in memory). The error is invalid_utf8 or invalid_json and
// names the byte, counted from 1.
std::variant<nlohmann::ordered_json, LineError> ParseJsonLine(
    absl::string_view line);

// Returns a short text of a value for error messages.
std::string DescribeJson(const nlohmann::ordered_json& value);

}  // namespace sluice
