#include "common/text/utf8.h"

#include <algorithm>
#include <cstring>

namespace sluice {
namespace {

constexpr absl::string_view kReplacement = "\xEF\xBF\xBD";

enum class Form { kValid, kInvalid, kUnfinished };

struct Scanned {
  Form form;
  size_t length;  // bytes of the character, or of the maximal invalid part
};

// Looks at the sequence that starts at the non-ASCII byte s[0]. Table 3-7 of
// the Unicode standard: only the second byte's range depends on the first.
Scanned ScanMultibyte(absl::string_view s) {
  const auto at = [&](size_t i) { return static_cast<unsigned char>(s[i]); };
  const unsigned char lead = at(0);
  size_t length;
  unsigned char low = 0x80;
  unsigned char high = 0xBF;
  if (lead >= 0xC2 && lead <= 0xDF) {
    length = 2;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    length = 3;
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    length = 4;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
  } else {
    return {Form::kInvalid, 1};
  }
  for (size_t i = 1; i < length; ++i) {
    if (i >= s.size()) return {Form::kUnfinished, s.size()};
    if (at(i) < low || at(i) > high) return {Form::kInvalid, i};
    low = 0x80;
    high = 0xBF;
  }
  return {Form::kValid, length};
}

// Offset of the first byte at or after `pos` that is not ASCII.
size_t SkipAscii(absl::string_view s, size_t pos) {
  while (pos + 8 <= s.size()) {
    uint64_t word;
    std::memcpy(&word, s.data() + pos, 8);
    if (word & 0x8080808080808080u) break;
    pos += 8;
  }
  while (pos < s.size() && static_cast<unsigned char>(s[pos]) < 0x80) ++pos;
  return pos;
}

}  // namespace

std::optional<size_t> FindInvalidUtf8(absl::string_view text) {
  size_t pos = 0;
  while (true) {
    pos = SkipAscii(text, pos);
    if (pos >= text.size()) return std::nullopt;
    const Scanned scanned = ScanMultibyte(text.substr(pos));
    if (scanned.form != Form::kValid) return pos;
    pos += scanned.length;
  }
}

bool IsAscii(absl::string_view text) {
  return SkipAscii(text, 0) == text.size();
}

size_t CountCharacters(absl::string_view text) {
  return std::count_if(text.begin(), text.end(),
                       [](char c) { return !IsUtf8Continuation(c); });
}

std::u32string ToUtf32(absl::string_view text) {
  std::u32string characters;
  characters.reserve(text.size());
  for (size_t pos = 0; pos < text.size();) {
    characters += DecodeUtf8(text, &pos);
  }
  return characters;
}

std::string FromUtf32(const std::u32string& characters) {
  std::string text;
  text.reserve(characters.size());
  for (const char32_t c : characters) AppendUtf8(c, &text);
  return text;
}

void AppendUtf8(char32_t c, std::string* out) {
  const auto put = [&](char32_t b) { out->push_back(static_cast<char>(b)); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xC0 | c >> 6);
    put(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    put(0xE0 | c >> 12);
    put(0x80 | (c >> 6 & 0x3F));
    put(0x80 | (c & 0x3F));
  } else {
    put(0xF0 | c >> 18);
    put(0x80 | (c >> 12 & 0x3F));
    put(0x80 | (c >> 6 & 0x3F));
    put(0x80 | (c & 0x3F));
  }
}

size_t AppendUtf8Lossy(absl::string_view bytes, bool final, std::string* out) {
  size_t pos = 0;
  while (pos < bytes.size()) {
    const size_t ascii_end = SkipAscii(bytes, pos);
    out->append(bytes.data() + pos, ascii_end - pos);
    pos = ascii_end;
    if (pos >= bytes.size()) break;
    const Scanned scanned = ScanMultibyte(bytes.substr(pos));
    if (scanned.form == Form::kUnfinished && !final) break;
    if (scanned.form == Form::kValid) {
      out->append(bytes.data() + pos, scanned.length);
    } else {
      out->append(kReplacement.data(), kReplacement.size());
    }
    pos += scanned.length;
  }
  return pos;
}

}  // namespace sluice
