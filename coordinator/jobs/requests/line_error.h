#pragma once

#include <string>

namespace sluice {

// The reason why a line is no request. Codes (few, as they are metric labels):
// invalid_json, invalid_utf8, empty_line, line_too_long, invalid_request,
// missing_field, unknown_field, unknown_model, unknown_endpoint,
// duplicate_custom_id, prompt_too_long, unsupported.
struct LineError {
  std::string code;
  std::string message;  // names field and reason and what to do; no line number
  std::string param;    // the field, "messages[0].role"; "" if none
};

}  // namespace sluice
