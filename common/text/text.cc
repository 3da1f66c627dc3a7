#include "common/text/text.h"

#include <optional>

#include "absl/strings/str_format.h"
#include "common/text/utf8.h"

namespace sluice {
namespace {

constexpr size_t kMostUtf8Bytes = 4;

bool IsContinuation(char c) {
  return (static_cast<unsigned char>(c) & 0xC0) == 0x80;
}

// Characters above ASCII that a terminal obeys: C1 controls, line and paragraph
// separators, embeddings, overrides and isolates of direction.
bool IsActive(char32_t c) {
  return (c >= 0x80 && c <= 0x9F) || c == 0x2028 || c == 0x2029 ||
         (c >= 0x202A && c <= 0x202E) || (c >= 0x2066 && c <= 0x2069);
}

void AppendByte(char c, std::string* out) {
  absl::StrAppendFormat(out, "\\x%02x", static_cast<unsigned char>(c));
}

// Calls `on_character` with each character of the valid parts of `text` and its
// bytes, and appends every other byte to `out` as "\xNN".
template <typename OnCharacter>
void ForEachCharacter(absl::string_view text, std::string* out,
                      const OnCharacter& on_character) {
  size_t pos = 0;
  while (pos < text.size()) {
    const std::optional<size_t> invalid = FindInvalidUtf8(text.substr(pos));
    const size_t end = invalid ? pos + *invalid : text.size();
    while (pos < end) {
      const size_t begin = pos;
      const char32_t c = DecodeUtf8(text, &pos);
      on_character(c, text.substr(begin, pos - begin));
    }
    if (invalid) AppendByte(text[pos++], out);
  }
}

std::string Escape(absl::string_view text, bool keep_lines) {
  std::string out;
  out.reserve(text.size());
  ForEachCharacter(text, &out, [&](char32_t c, absl::string_view bytes) {
    if (c == '\n' && keep_lines) {
      out += "\n    ";
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (c < 0x20 || c == 0x7F) {
      AppendByte(bytes[0], &out);
    } else if (IsActive(c)) {
      absl::StrAppendFormat(&out, "\\u%04x", static_cast<uint32_t>(c));
    } else {
      out.append(bytes.data(), bytes.size());
    }
  });
  return out;
}

}  // namespace

absl::string_view ClipUtf8(absl::string_view text, size_t max_bytes) {
  if (text.size() <= max_bytes) return text;
  // A character that the cut splits began at most three bytes before it.
  size_t begin = max_bytes;
  while (begin > 0 && max_bytes - begin < kMostUtf8Bytes - 1 &&
         IsContinuation(text[begin])) {
    --begin;
  }
  if (begin < max_bytes) {
    const absl::string_view last = text.substr(begin, Utf8Length(text[begin]));
    const bool split = !IsContinuation(text[begin]) &&
                       begin + last.size() > max_bytes &&
                       !FindInvalidUtf8(last);
    if (split) return text.substr(0, begin);
  }
  return text.substr(0, max_bytes);
}

std::string EscapeInvalidUtf8(absl::string_view text) {
  if (!FindInvalidUtf8(text)) return std::string(text);
  std::string out;
  ForEachCharacter(text, &out, [&](char32_t, absl::string_view bytes) {
    out.append(bytes.data(), bytes.size());
  });
  return out;
}

std::string EscapeForTerminal(absl::string_view text) {
  return Escape(text, /*keep_lines=*/false);
}

std::string EscapeLinesForTerminal(absl::string_view text) {
  return Escape(text, /*keep_lines=*/true);
}

std::string EscapeJsonForTerminal(absl::string_view json) {
  std::string out;
  out.reserve(json.size());
  ForEachCharacter(json, &out, [&](char32_t c, absl::string_view bytes) {
    if (c == 0x7F || IsActive(c)) {
      absl::StrAppendFormat(&out, "\\u%04x", static_cast<uint32_t>(c));
    } else {
      out.append(bytes.data(), bytes.size());
    }
  });
  return out;
}

}  // namespace sluice
