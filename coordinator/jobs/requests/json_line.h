#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <variant>

#include "absl/strings/string_view.h"

namespace sluice {

// The reason why a line is no request. Codes (few, as they are metric labels):
// invalid_json, invalid_utf8, invalid_row, empty_line, line_too_long,
// invalid_request, missing_field, unknown_field, unknown_model,
// unknown_endpoint, duplicate_custom_id, prompt_too_long, unsupported.
struct LineError {
  std::string code;
  std::string message;  // names field and reason and what to do; no line number
  std::string param;    // the field, "messages[0].role"; "" if none
};

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
