#include "coordinator/jobs/utf8.h"

#include <cstdint>

#include "absl/strings/str_format.h"

namespace sluice {
namespace {

// Length of the character that starts at text[i], 0 if it is not valid.
// The table of well-formed sequences is Unicode's (core specification, 3-7).
size_t CharacterLength(absl::string_view text, size_t i) {
  const auto at = [&](size_t k) -> uint8_t {
    return i + k < text.size() ? static_cast<uint8_t>(text[i + k]) : 0;
  };
  const auto continues = [&](size_t k) { return (at(k) & 0xC0) == 0x80; };
  const uint8_t b = at(0);
  if (b < 0x80) return 1;
  if (b >= 0xC2 && b <= 0xDF) return continues(1) ? 2 : 0;
  if (b >= 0xE0 && b <= 0xEF) {
    if (b == 0xE0 && at(1) < 0xA0) return 0;
    if (b == 0xED && at(1) > 0x9F) return 0;
    return continues(1) && continues(2) ? 3 : 0;
  }
  if (b >= 0xF0 && b <= 0xF4) {
    if (b == 0xF0 && at(1) < 0x90) return 0;
    if (b == 0xF4 && at(1) > 0x8F) return 0;
    return continues(1) && continues(2) && continues(3) ? 4 : 0;
  }
  return 0;
}

}  // namespace

size_t FindBadUtf8(absl::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const size_t length = CharacterLength(text, i);
    if (length == 0) return i;
    i += length;
  }
  return absl::string_view::npos;
}

size_t CountCharacters(absl::string_view text) {
  size_t count = 0;
  for (const char c : text) count += (static_cast<uint8_t>(c) & 0xC0) != 0x80;
  return count;
}

std::string QuoteForMessage(absl::string_view text, size_t max_bytes) {
  std::string quoted = "\"";
  for (size_t i = 0; i < text.size();) {
    if (quoted.size() > max_bytes) return quoted + "...\"";
    const size_t length = CharacterLength(text, i);
    const auto c = static_cast<uint8_t>(text[i]);
    if (length == 0) {
      quoted += "\xEF\xBF\xBD";
      ++i;
    } else if (c < 0x20 || c == 0x7F) {
      absl::StrAppendFormat(&quoted, "\\x%02x", c);
      ++i;
    } else {
      if (c == '"' || c == '\\') quoted += '\\';
      quoted.append(text.data() + i, length);
      i += length;
    }
  }
  return quoted + "\"";
}

}  // namespace sluice
