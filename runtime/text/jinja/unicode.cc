#include "runtime/text/jinja/unicode.h"

#include <unicode/uchar.h>
#include <unicode/ustring.h>

#include <algorithm>

#include "absl/strings/str_format.h"

namespace sluice::jinja {
namespace {

// Applies one of ICU's UTF-16 case mappings.
template <typename Map>
std::string MapCase(absl::string_view text, Map map) {
  std::u16string source;
  source.reserve(text.size());
  for (size_t pos = 0; pos < text.size();) {
    const uint32_t c = NextCodePoint(text, pos);
    if (c >= 0x10000) {
      source += static_cast<char16_t>(0xD7C0 + (c >> 10));
      source += static_cast<char16_t>(0xDC00 + (c & 0x3FF));
    } else {
      source += static_cast<char16_t>(c);
    }
  }
  // One code unit becomes three at most.
  std::u16string mapped(source.size() * 3 + 1, u'\0');
  UErrorCode error = U_ZERO_ERROR;
  const int32_t size =
      map(mapped.data(), static_cast<int32_t>(mapped.size()), source.data(),
          static_cast<int32_t>(source.size()), &error);
  if (U_FAILURE(error)) return std::string(text);
  std::string out;
  for (int32_t i = 0; i < size; ++i) {
    uint32_t c = mapped[i];
    if (c >= 0xD800 && c < 0xDC00 && i + 1 < size) {
      c = 0x10000 + ((c - 0xD800) << 10) + (mapped[++i] - 0xDC00);
    }
    AppendUtf8(c, out);
  }
  return out;
}

bool IsAscii(absl::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) {
    return static_cast<unsigned char>(c) < 0x80;
  });
}

bool IsCased(uint32_t c) { return IsUpper(c) || IsLower(c) || IsTitle(c); }

// Full title-case mapping of one character (German sharp s becomes "Ss").
std::string TitleChar(uint32_t c) {
  std::string one;
  AppendUtf8(c, one);
  return MapCase(one, [](UChar* to, int32_t to_size, const UChar* from,
                         int32_t from_size, UErrorCode* error) {
    return u_strToTitle(to, to_size, from, from_size, nullptr, "", error);
  });
}

}  // namespace

bool IsValidUtf8(absl::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const unsigned char lead = text[i];
    const size_t n = Utf8Length(lead);
    if (lead >= 0x80 && (n == 1 || lead > 0xF4)) return false;
    if (i + n > text.size()) return false;
    for (size_t j = 1; j < n; ++j) {
      if ((static_cast<unsigned char>(text[i + j]) & 0xC0) != 0x80) {
        return false;
      }
    }
    size_t pos = i;
    const uint32_t c = NextCodePoint(text, pos);
    static constexpr uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
    if (c < kLeast[n] || c > 0x10FFFF || (c >= 0xD800 && c < 0xE000)) {
      return false;
    }
    i += n;
  }
  return true;
}

size_t Utf8Length(unsigned char lead) {
  if (lead < 0xC0) return 1;
  if (lead < 0xE0) return 2;
  if (lead < 0xF0) return 3;
  return 4;
}

void AppendUtf8(uint32_t c, std::string& out) {
  if (c < 0x80) {
    out += static_cast<char>(c);
  } else if (c < 0x800) {
    out += static_cast<char>(0xC0 | (c >> 6));
    out += static_cast<char>(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    out += static_cast<char>(0xE0 | (c >> 12));
    out += static_cast<char>(0x80 | ((c >> 6) & 0x3F));
    out += static_cast<char>(0x80 | (c & 0x3F));
  } else {
    out += static_cast<char>(0xF0 | (c >> 18));
    out += static_cast<char>(0x80 | ((c >> 12) & 0x3F));
    out += static_cast<char>(0x80 | ((c >> 6) & 0x3F));
    out += static_cast<char>(0x80 | (c & 0x3F));
  }
}

uint32_t NextCodePoint(absl::string_view text, size_t& pos) {
  const unsigned char lead = text[pos];
  const size_t n = std::min(Utf8Length(lead), text.size() - pos);
  uint32_t c = n == 1   ? lead
               : n == 2 ? lead & 0x1Fu
               : n == 3 ? lead & 0x0Fu
                        : lead & 0x07u;
  for (size_t i = 1; i < n; ++i) {
    c = (c << 6) | (static_cast<unsigned char>(text[pos + i]) & 0x3Fu);
  }
  pos += n;
  return c;
}

size_t CountCodePoints(absl::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  });
}

std::vector<uint32_t> ToCodePoints(absl::string_view text) {
  std::vector<uint32_t> code_points;
  code_points.reserve(text.size());
  for (size_t pos = 0; pos < text.size();) {
    code_points.push_back(NextCodePoint(text, pos));
  }
  return code_points;
}

std::string FromCodePoints(const std::vector<uint32_t>& code_points) {
  std::string text;
  text.reserve(code_points.size());
  for (const uint32_t c : code_points) AppendUtf8(c, text);
  return text;
}

bool IsSpace(uint32_t c) {
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 ||
         c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) ||
         c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

bool IsPrintable(uint32_t c) {
  if (c == ' ') return true;
  constexpr uint32_t kHidden = U_GC_C_MASK | U_GC_Z_MASK;
  return (U_GET_GC_MASK(static_cast<UChar32>(c)) & kHidden) == 0;
}

bool IsAlpha(uint32_t c) {
  return (U_GET_GC_MASK(static_cast<UChar32>(c)) & U_GC_L_MASK) != 0;
}

namespace {
UNumericType NumericType(uint32_t c) {
  return static_cast<UNumericType>(
      u_getIntPropertyValue(static_cast<UChar32>(c), UCHAR_NUMERIC_TYPE));
}
}  // namespace

bool IsDecimal(uint32_t c) { return NumericType(c) == U_NT_DECIMAL; }
bool IsDigit(uint32_t c) {
  return IsDecimal(c) || NumericType(c) == U_NT_DIGIT;
}
bool IsNumeric(uint32_t c) { return NumericType(c) != U_NT_NONE; }
bool IsUpper(uint32_t c) { return u_hasBinaryProperty(c, UCHAR_UPPERCASE); }
bool IsLower(uint32_t c) { return u_hasBinaryProperty(c, UCHAR_LOWERCASE); }
bool IsTitle(uint32_t c) { return u_istitle(static_cast<UChar32>(c)); }
bool IsIdentifierStart(uint32_t c) {
  return c == '_' || u_hasBinaryProperty(c, UCHAR_XID_START);
}
bool IsIdentifierPart(uint32_t c) {
  return u_hasBinaryProperty(c, UCHAR_XID_CONTINUE);
}

std::string ToUpper(absl::string_view text) {
  if (IsAscii(text)) {
    std::string out(text);
    for (char& c : out) {
      if (c >= 'a' && c <= 'z') c -= 'a' - 'A';
    }
    return out;
  }
  return MapCase(text, [](UChar* to, int32_t to_size, const UChar* from,
                          int32_t from_size, UErrorCode* error) {
    return u_strToUpper(to, to_size, from, from_size, "", error);
  });
}

std::string ToLower(absl::string_view text) {
  if (IsAscii(text)) {
    std::string out(text);
    for (char& c : out) {
      if (c >= 'A' && c <= 'Z') c += 'a' - 'A';
    }
    return out;
  }
  return MapCase(text, [](UChar* to, int32_t to_size, const UChar* from,
                          int32_t from_size, UErrorCode* error) {
    return u_strToLower(to, to_size, from, from_size, "", error);
  });
}

std::string CaseFold(absl::string_view text) {
  return MapCase(text, [](UChar* to, int32_t to_size, const UChar* from,
                          int32_t from_size, UErrorCode* error) {
    return u_strFoldCase(to, to_size, from, from_size, U_FOLD_CASE_DEFAULT,
                         error);
  });
}

std::string Capitalize(absl::string_view text) {
  if (text.empty()) return "";
  // Lower case of the whole, so that a final sigma is seen as final.
  size_t pos = 0;
  const uint32_t first = NextCodePoint(text, pos);
  const std::string lower = ToLower(text);
  const size_t skip = ToLower(text.substr(0, pos)).size();
  return TitleChar(first) + lower.substr(std::min(skip, lower.size()));
}

std::string TitleCase(absl::string_view text) {
  std::string out;
  bool in_word = false;
  for (size_t pos = 0; pos < text.size();) {
    const size_t start = pos;
    const uint32_t c = NextCodePoint(text, pos);
    out += in_word ? ToLower(text.substr(start, pos - start)) : TitleChar(c);
    in_word = IsCased(c);
  }
  return out;
}

absl::string_view Strip(absl::string_view text, const std::string* chars,
                        bool left, bool right) {
  std::vector<uint32_t> set;
  if (chars != nullptr) set = ToCodePoints(*chars);
  const auto strips = [&](uint32_t c) {
    return chars == nullptr ? IsSpace(c)
                            : std::find(set.begin(), set.end(), c) != set.end();
  };
  size_t begin = 0, end = text.size();
  while (left && begin < end) {
    size_t pos = begin;
    if (!strips(NextCodePoint(text, pos))) break;
    begin = pos;
  }
  while (right && begin < end) {
    size_t start = end - 1;
    while (start > begin &&
           (static_cast<unsigned char>(text[start]) & 0xC0) == 0x80) {
      --start;
    }
    size_t pos = start;
    if (!strips(NextCodePoint(text, pos))) break;
    end = start;
  }
  return text.substr(begin, end - begin);
}

std::string QuotePython(absl::string_view text) {
  const bool use_double = text.find('\'') != absl::string_view::npos &&
                          text.find('"') == absl::string_view::npos;
  const char quote = use_double ? '"' : '\'';
  std::string out(1, quote);
  for (size_t pos = 0; pos < text.size();) {
    const size_t start = pos;
    const uint32_t c = NextCodePoint(text, pos);
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
    } else if (c < 0x100) {
      out += absl::StrFormat("\\x%02x", c);
    } else if (c < 0x10000) {
      out += absl::StrFormat("\\u%04x", c);
    } else {
      out += absl::StrFormat("\\U%08x", c);
    }
  }
  return out + quote;
}

std::string QuoteJson(absl::string_view text, bool ensure_ascii) {
  std::string out = "\"";
  for (size_t pos = 0; pos < text.size();) {
    const size_t start = pos;
    const uint32_t c = NextCodePoint(text, pos);
    switch (c) {
      case '"':
        out += "\\\"";
        continue;
      case '\\':
        out += "\\\\";
        continue;
      case '\n':
        out += "\\n";
        continue;
      case '\r':
        out += "\\r";
        continue;
      case '\t':
        out += "\\t";
        continue;
      case '\b':
        out += "\\b";
        continue;
      case '\f':
        out += "\\f";
        continue;
      default:
        break;
    }
    if (c >= 0x20 && (c < 0x7F || !ensure_ascii)) {
      out.append(text.data() + start, pos - start);
    } else if (c >= 0x10000) {
      out += absl::StrFormat("\\u%04x\\u%04x", 0xD7C0 + (c >> 10),
                             0xDC00 + (c & 0x3FF));
    } else {
      out += absl::StrFormat("\\u%04x", c);
    }
  }
  return out + '"';
}

}  // namespace sluice::jinja
