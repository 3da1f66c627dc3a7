#include "coordinator/jobs/requests/message_text.h"

#include <cstdint>
#include <nlohmann/json.hpp>

#include "absl/strings/str_format.h"
#include "common/text/utf8.h"

namespace sluice {

size_t CountCharacters(absl::string_view text) {
  size_t count = 0;
  for (const char c : text) count += (static_cast<uint8_t>(c) & 0xC0) != 0x80;
  return count;
}

std::string QuoteJson(absl::string_view text) {
  return nlohmann::json(std::string(text))
      .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string QuoteForMessage(absl::string_view text, size_t max_bytes) {
  const absl::string_view start = text.substr(0, max_bytes);
  std::string valid;
  // A character that the cut splits is left out, unless nothing follows it.
  AppendUtf8Lossy(start, start.size() == text.size(), &valid);
  std::string quoted = "\"";
  for (const char c : valid) {
    if (static_cast<uint8_t>(c) < 0x20 || c == 0x7F) {
      absl::StrAppendFormat(&quoted, "\\x%02x", static_cast<uint8_t>(c));
      continue;
    }
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c;
  }
  quoted += start.size() == text.size() ? "\"" : "...\"";
  return quoted;
}

}  // namespace sluice
