#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace sluice {

// Offset of the first byte that is not part of valid UTF-8 (overlong forms,
// surrogates and values above U+10FFFF are not), or nullopt.
std::optional<size_t> FindInvalidUtf8(absl::string_view text);

// The character at `*pos`, which is moved past it. `text` must be valid UTF-8
// and `*pos` the start of a character.
inline char32_t DecodeUtf8(absl::string_view text, size_t* pos) {
  const auto at = [&](size_t i) {
    return static_cast<char32_t>(static_cast<unsigned char>(text[*pos + i]));
  };
  const char32_t lead = at(0);
  char32_t c;
  size_t length;
  if (lead < 0x80) {
    c = lead;
    length = 1;
  } else if (lead < 0xE0) {
    c = (lead & 0x1F) << 6 | (at(1) & 0x3F);
    length = 2;
  } else if (lead < 0xF0) {
    c = (lead & 0x0F) << 12 | (at(1) & 0x3F) << 6 | (at(2) & 0x3F);
    length = 3;
  } else {
    c = (lead & 0x07) << 18 | (at(1) & 0x3F) << 12 | (at(2) & 0x3F) << 6 |
        (at(3) & 0x3F);
    length = 4;
  }
  *pos += length;
  return c;
}

// Whether all of `text` is below U+0080.
bool IsAscii(absl::string_view text);

// Whether `byte` (of valid UTF-8) is any but the first of its character.
inline bool IsUtf8Continuation(char byte) {
  return (static_cast<unsigned char>(byte) & 0xC0) == 0x80;
}

// Characters (code points) of valid UTF-8.
size_t CountCharacters(absl::string_view text);

// Bytes of the character whose first byte is `lead` (of valid UTF-8).
inline size_t Utf8Length(char lead) {
  const auto b = static_cast<unsigned char>(lead);
  return b < 0x80 ? 1 : b < 0xE0 ? 2 : b < 0xF0 ? 3 : 4;
}

// Start of the character that ends at `end` (> 0) of valid UTF-8.
inline size_t PreviousUtf8(absl::string_view text, size_t end) {
  do {
    --end;
  } while (IsUtf8Continuation(text[end]));
  return end;
}

void AppendUtf8(char32_t c, std::string* out);

// Conversions between valid UTF-8 and code points.
std::u32string ToUtf32(absl::string_view text);
std::string FromUtf32(const std::u32string& characters);

// Appends `bytes` to `out` with each maximal part of an invalid sequence
// replaced by U+FFFD (Unicode 15, section 3.9, "Substitution of Maximal
// Subparts"). Without `final`, stops before an unfinished character at the
// end. Returns how many bytes were used.
size_t AppendUtf8Lossy(absl::string_view bytes, bool final, std::string* out);

}  // namespace sluice
