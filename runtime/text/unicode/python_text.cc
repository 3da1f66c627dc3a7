#include "runtime/text/unicode/python_text.h"

#include <unicode/locid.h>
#include <unicode/uchar.h>
#include <unicode/unistr.h>

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_format.h"
#include "common/text/utf8.h"

namespace sluice {
namespace {

// Applies one of ICU's case mappings.
template <typename Map>
std::string MapCase(absl::string_view text, const Map& map) {
  icu::UnicodeString mapped = icu::UnicodeString::fromUTF8(
      icu::StringPiece(text.data(), static_cast<int32_t>(text.size())));
  map(&mapped);
  std::string out;
  return mapped.toUTF8String(out);
}

bool IsCased(char32_t c) { return IsUpper(c) || IsLower(c) || IsTitle(c); }

// The full title-case mapping of one character (German sharp s becomes "Ss").
std::string TitleChar(absl::string_view c) {
  return MapCase(c, [](icu::UnicodeString* text) {
    text->toTitle(nullptr, icu::Locale::getRoot());
  });
}

UNumericType NumericType(char32_t c) {
  return static_cast<UNumericType>(
      u_getIntPropertyValue(static_cast<UChar32>(c), UCHAR_NUMERIC_TYPE));
}

}  // namespace

bool IsSpace(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 ||
         c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) ||
         c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

bool IsPrintable(char32_t c) {
  if (c == ' ') return true;
  constexpr uint32_t kHidden = U_GC_C_MASK | U_GC_Z_MASK;
  return (U_GET_GC_MASK(static_cast<UChar32>(c)) & kHidden) == 0;
}

bool IsAlpha(char32_t c) {
  return (U_GET_GC_MASK(static_cast<UChar32>(c)) & U_GC_L_MASK) != 0;
}

bool IsDecimal(char32_t c) { return NumericType(c) == U_NT_DECIMAL; }
bool IsDigit(char32_t c) {
  return IsDecimal(c) || NumericType(c) == U_NT_DIGIT;
}
bool IsNumeric(char32_t c) { return NumericType(c) != U_NT_NONE; }
bool IsUpper(char32_t c) { return u_hasBinaryProperty(c, UCHAR_UPPERCASE); }
bool IsLower(char32_t c) { return u_hasBinaryProperty(c, UCHAR_LOWERCASE); }
bool IsTitle(char32_t c) { return u_istitle(static_cast<UChar32>(c)); }
bool IsIdentifierStart(char32_t c) {
  return c == '_' || u_hasBinaryProperty(c, UCHAR_XID_START);
}
bool IsIdentifierPart(char32_t c) {
  return u_hasBinaryProperty(c, UCHAR_XID_CONTINUE);
}

std::string ToUpper(absl::string_view text) {
  if (IsAscii(text)) return absl::AsciiStrToUpper(text);
  return MapCase(text, [](icu::UnicodeString* mapped) {
    mapped->toUpper(icu::Locale::getRoot());
  });
}

std::string ToLower(absl::string_view text) {
  if (IsAscii(text)) return absl::AsciiStrToLower(text);
  return MapCase(text, [](icu::UnicodeString* mapped) {
    mapped->toLower(icu::Locale::getRoot());
  });
}

std::string CaseFold(absl::string_view text) {
  return MapCase(text, [](icu::UnicodeString* mapped) { mapped->foldCase(); });
}

std::string Capitalize(absl::string_view text) {
  if (text.empty()) return "";
  // The whole text is lowered, so that a final sigma is recognized.
  const absl::string_view first = text.substr(0, Utf8Length(text[0]));
  const std::string lower = ToLower(text);
  const size_t skip = ToLower(first).size();
  return TitleChar(first) + lower.substr(std::min(skip, lower.size()));
}

std::string TitleCase(absl::string_view text) {
  std::string out;
  bool in_word = false;
  for (size_t pos = 0; pos < text.size();) {
    const size_t start = pos;
    const char32_t c = DecodeUtf8(text, &pos);
    const absl::string_view one = text.substr(start, pos - start);
    out += in_word ? ToLower(one) : TitleChar(one);
    in_word = IsCased(c);
  }
  return out;
}

absl::string_view Strip(absl::string_view text, const std::string* chars,
                        bool left, bool right) {
  const std::u32string set = chars == nullptr ? U"" : ToUtf32(*chars);
  // Whether the character at `pos` is stripped; `end` is moved past it.
  const auto strips = [&](size_t pos, size_t* end) {
    const char32_t c = DecodeUtf8(text, &pos);
    *end = pos;
    return chars == nullptr ? IsSpace(c) : set.find(c) != set.npos;
  };
  size_t next = 0;
  while (left && !text.empty() && strips(0, &next)) text.remove_prefix(next);
  while (right && !text.empty()) {
    const size_t last = PreviousUtf8(text, text.size());
    if (!strips(last, &next)) break;
    text = text.substr(0, last);
  }
  return text;
}

void AppendPythonEscape(uint32_t c, std::string* out) {
  if (c < 0x100) {
    absl::StrAppendFormat(out, "\\x%02x", c);
  } else if (c < 0x10000) {
    absl::StrAppendFormat(out, "\\u%04x", c);
  } else {
    absl::StrAppendFormat(out, "\\U%08x", c);
  }
}

std::string QuotePython(absl::string_view text) {
  const bool use_double = text.find('\'') != absl::string_view::npos &&
                          text.find('"') == absl::string_view::npos;
  const char quote = use_double ? '"' : '\'';
  std::string out(1, quote);
  for (size_t pos = 0; pos < text.size();) {
    const size_t start = pos;
    const uint32_t c = DecodeUtf8(text, &pos);
    if (c == static_cast<uint32_t>(quote) || c == '\\') {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (IsPrintable(c)) {
      out.append(text.data() + start, pos - start);
    } else {
      AppendPythonEscape(c, &out);
    }
  }
  return out + quote;
}

}  // namespace sluice
