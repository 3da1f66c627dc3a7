#include "common/text/text.h"

#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "common/text/utf8.h"

namespace sluice {
namespace {

constexpr size_t kMaxUtf8Bytes = 4;

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
  while (begin > 0 && max_bytes - begin < kMaxUtf8Bytes - 1 &&
         IsUtf8Continuation(text[begin])) {
    --begin;
  }
  if (begin < max_bytes) {
    const absl::string_view last = text.substr(begin, Utf8Length(text[begin]));
    const bool split = !IsUtf8Continuation(text[begin]) &&
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

std::string JsonErrorText(absl::string_view what) {
  if (absl::StartsWith(what, "[json.exception.")) {
    const size_t end = what.find("] ");
    if (end != absl::string_view::npos) what.remove_prefix(end + 2);
  }
  absl::ConsumePrefix(&what, "parse error at ");
  return std::string(what.data(), what.size());
}

std::string QuoteJson(absl::string_view text, bool ensure_ascii) {
  std::string valid;
  if (FindInvalidUtf8(text)) {
    AppendUtf8Lossy(text, /*final=*/true, &valid);
    text = valid;
  }
  static constexpr absl::string_view kNamed = "\"\\\b\f\n\r\t";
  static constexpr absl::string_view kNames = "\"\\bfnrt";
  std::string out = "\"";
  out.reserve(text.size() + 2);
  size_t copied = 0;
  for (size_t pos = 0; pos < text.size();) {
    const size_t begin = pos;
    const uint32_t c = DecodeUtf8(text, &pos);
    const size_t name =
        c < 0x80 ? kNamed.find(static_cast<char>(c)) : kNamed.npos;
    if (name == kNamed.npos && c >= 0x20 && (c < 0x7F || !ensure_ascii)) {
      continue;
    }
    out.append(text.data() + copied, begin - copied);
    copied = pos;
    if (name != kNamed.npos) {
      out += {'\\', kNames[name]};
    } else if (c >= 0x10000) {
      absl::StrAppendFormat(&out, "\\u%04x\\u%04x", 0xD7C0 + (c >> 10),
                            0xDC00 + (c & 0x3FF));
    } else {
      absl::StrAppendFormat(&out, "\\u%04x", c);
    }
  }
  out.append(text.data() + copied, text.size() - copied);
  return out + '"';
}

std::string EscapeLineEnds(std::string json) {
  static constexpr std::pair<const char*, const char*> kEnds[] = {
      {"\xC2\x85", "\\u0085"},
      {"\xE2\x80\xA8", "\\u2028"},
      {"\xE2\x80\xA9", "\\u2029"}};
  for (const auto& [bytes, escape] : kEnds) {
    if (absl::StrContains(json, bytes)) {
      json = absl::StrReplaceAll(json, {{bytes, escape}});
    }
  }
  return json;
}

std::string QuoteForMessage(absl::string_view text, size_t max_bytes) {
  const absl::string_view start = text.substr(0, max_bytes);
  std::string valid;
  // A character that the cut splits is left out, unless nothing follows it.
  AppendUtf8Lossy(start, start.size() == text.size(), &valid);
  std::string quoted = "\"";
  for (const char c : valid) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) {
      AppendByte(c, &quoted);
      continue;
    }
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c;
  }
  quoted += start.size() == text.size() ? "\"" : "...\"";
  return quoted;
}

}  // namespace sluice
