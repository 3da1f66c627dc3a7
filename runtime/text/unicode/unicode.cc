#include "runtime/text/unicode/unicode.h"

#include <unicode/normalizer2.h>
#include <unicode/uchar.h>
#include <unicode/uniset.h>
#include <unicode/unistr.h>
#include <unicode/uscript.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <vector>

#include "common/text/utf8.h"
#include "runtime/text/unicode/unicode_additions.h"

namespace sluice {
namespace {

using CharRanges = std::vector<CharRange>;

// Whether `ranges`, which are in order and disjoint, contain `c`.
bool Contains(const CharRanges& ranges, char32_t c) {
  const auto behind = std::upper_bound(
      ranges.begin(), ranges.end(), c,
      [](char32_t c, const CharRange& range) { return c < range.first; });
  return behind != ranges.begin() && c <= std::prev(behind)->last;
}

struct LowercaseRange {
  char32_t first;
  char32_t last;
  int32_t offset;
};
constexpr LowercaseRange kNewLowercase[] = {
    {0x1C89, 0x1C89, 1},      {0xA7CB, 0xA7CB, 0x264 - 0xA7CB},
    {0xA7CC, 0xA7CC, 1},      {0xA7CE, 0xA7CE, 1},
    {0xA7D2, 0xA7D2, 1},      {0xA7D4, 0xA7D4, 1},
    {0xA7DA, 0xA7DA, 1},      {0xA7DC, 0xA7DC, 0x19B - 0xA7DC},
    {0x10D50, 0x10D65, 0x20}, {0x16EA0, 0x16EB8, 0x1B}};

// Whether `c` was assigned in Unicode `major` or before.
bool IsOfAge(char32_t c, int major) {
  UVersionInfo version;
  u_charAge(static_cast<UChar32>(c), version);
  return version[0] != 0 &&
         (version[0] < major || (version[0] == major && version[1] == 0));
}

const icu::Normalizer2* BaseNormalizer(NormalForm form) {
  UErrorCode error = U_ZERO_ERROR;
  switch (form) {
    case NormalForm::kNfc:
      return icu::Normalizer2::getNFCInstance(error);
    case NormalForm::kNfd:
      return icu::Normalizer2::getNFDInstance(error);
    case NormalForm::kNfkc:
      return icu::Normalizer2::getNFKCInstance(error);
    case NormalForm::kNfkd:
      return icu::Normalizer2::getNFKDInstance(error);
  }
  return nullptr;
}

const icu::Normalizer2& GetNormalizer(NormalForm form) {
  static const icu::UnicodeSet* const known = [] {
    UErrorCode error = U_ZERO_ERROR;
    auto* set = new icu::UnicodeSet(u"[:age=9.0:]", error);
    set->freeze();
    return set;
  }();
  static const std::array<std::unique_ptr<icu::Normalizer2>, 4> all = [] {
    std::array<std::unique_ptr<icu::Normalizer2>, 4> made;
    for (size_t i = 0; i < made.size(); ++i) {
      made[i] = std::make_unique<icu::FilteredNormalizer2>(
          *BaseNormalizer(static_cast<NormalForm>(i)), *known);
    }
    return made;
  }();
  return *all[static_cast<size_t>(form)];
}

ByteAlphabet MakeByteAlphabet() {
  ByteAlphabet a;
  a.byte_of_char.fill(-1);
  char32_t next = 0x100;
  for (int b = 0; b < 256; ++b) {
    const bool printable =
        (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
    const char32_t c = printable ? static_cast<char32_t>(b) : next++;
    a.char_of_byte[b] = c;
    a.byte_of_char[c] = static_cast<int16_t>(b);
    AppendUtf8(c, &a.text_of_byte[b]);
  }
  return a;
}

}  // namespace

bool IsWhitespace(char32_t c) {
  if (c < 0x80) return c == ' ' || (c >= 0x09 && c <= 0x0D);
  return u_hasBinaryProperty(static_cast<UChar32>(c), UCHAR_WHITE_SPACE);
}

bool IsNumber(char32_t c) {
  static const CharRanges& added =
      *new CharRanges(AddedCharacters("Number of Unicode 17"));
  if (c < 0x80) return c >= '0' && c <= '9';
  return (U_GET_GC_MASK(static_cast<UChar32>(c)) & U_GC_N_MASK) != 0 ||
         Contains(added, c);
}

bool IsPunctuation(char32_t c) {
  if (c < 0x80) {
    return (c >= 0x21 && c <= 0x2F) || (c >= 0x3A && c <= 0x40) ||
           (c >= 0x5B && c <= 0x60) || (c >= 0x7B && c <= 0x7E);
  }
  if (c == 0x166D || c == 0x111C9) return true;  // were punctuation then
  return (U_GET_GC_MASK(static_cast<UChar32>(c)) & U_GC_P_MASK) != 0 &&
         IsOfAge(c, 8);
}

bool IsWordChar(char32_t c) {
  static const CharRanges& added = *new CharRanges(AddedCharacters("Word"));
  const auto u = static_cast<UChar32>(c);
  return (U_GET_GC_MASK(u) & (U_GC_M_MASK | U_GC_ND_MASK | U_GC_PC_MASK)) !=
             0 ||
         u_hasBinaryProperty(u, UCHAR_ALPHABETIC) ||
         u_hasBinaryProperty(u, UCHAR_JOIN_CONTROL) || Contains(added, c);
}

bool IsMark(char32_t c) {
  if (c == 0x1CF2 || c == 0x1CF3) return true;  // were marks then
  return (U_GET_GC_MASK(static_cast<UChar32>(c)) & U_GC_M_MASK) != 0 &&
         c != 0x111C9 && IsOfAge(c, 9);
}

std::optional<int> ScriptOf(char32_t c) {
  if (c == ' ' || (c >= 0x80 && !IsOfAge(c, 9))) return std::nullopt;
  if (c == 0x589 || c == 0x61C) return USCRIPT_COMMON;  // were common then
  UErrorCode error = U_ZERO_ERROR;
  const UScriptCode script = uscript_getScript(static_cast<UChar32>(c), &error);
  if (script == USCRIPT_UNKNOWN) return std::nullopt;
  if (script == USCRIPT_HIRAGANA || script == USCRIPT_KATAKANA || c == 0x30FC) {
    return USCRIPT_HAN;
  }
  return script;
}

void AppendLowercase(char32_t c, std::string* out) {
  if (c == 0x130) {  // the only character with a longer lowercase
    out->append("i\xCC\x87");
    return;
  }
  for (const LowercaseRange& range : kNewLowercase) {
    if (c < range.first || c > range.last) continue;
    AppendUtf8(c + static_cast<char32_t>(range.offset), out);
    return;
  }
  AppendUtf8(static_cast<char32_t>(u_tolower(static_cast<UChar32>(c))), out);
}

std::string Normalized(NormalForm form, absl::string_view text) {
  if (IsAscii(text)) return std::string(text);
  std::string out;
  out.reserve(text.size());
  UErrorCode error = U_ZERO_ERROR;
  icu::StringByteSink<std::string> sink(&out);
  GetNormalizer(form).normalizeUTF8(
      0, icu::StringPiece(text.data(), static_cast<int32_t>(text.size())), sink,
      nullptr, error);
  return out;
}

const ByteAlphabet& GetByteAlphabet() {
  static const ByteAlphabet alphabet = MakeByteAlphabet();
  return alphabet;
}

void AppendByteChars(absl::string_view bytes, std::string* out) {
  const ByteAlphabet& alphabet = GetByteAlphabet();
  out->reserve(out->size() + bytes.size() + bytes.size() / 4);
  for (const char b : bytes) {
    out->append(alphabet.text_of_byte[static_cast<unsigned char>(b)]);
  }
}

}  // namespace sluice
