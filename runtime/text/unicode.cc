#include "runtime/text/unicode.h"

#include <unicode/normalizer2.h>
#include <unicode/uchar.h>
#include <unicode/unistr.h>

#include "runtime/text/utf8.h"

namespace sluice {
namespace {

bool IsAscii(char32_t c) { return c < 0x80; }

const icu::Normalizer2* GetNormalizer(NormalForm form) {
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
  if (IsAscii(c)) return c == ' ' || (c >= 0x09 && c <= 0x0D);
  return u_hasBinaryProperty(static_cast<UChar32>(c), UCHAR_WHITE_SPACE);
}

bool IsNumeric(char32_t c) {
  if (IsAscii(c)) return c >= '0' && c <= '9';
  return (U_GET_GC_MASK(static_cast<UChar32>(c)) & U_GC_N_MASK) != 0;
}

bool IsPunctuation(char32_t c) {
  if (IsAscii(c)) {
    return (c >= 0x21 && c <= 0x2F) || (c >= 0x3A && c <= 0x40) ||
           (c >= 0x5B && c <= 0x60) || (c >= 0x7B && c <= 0x7E);
  }
  return (U_GET_GC_MASK(static_cast<UChar32>(c)) & U_GC_P_MASK) != 0;
}

bool IsWordChar(char32_t c) {
  const auto u = static_cast<UChar32>(c);
  return (U_GET_GC_MASK(u) & (U_GC_M_MASK | U_GC_ND_MASK | U_GC_PC_MASK)) !=
             0 ||
         u_hasBinaryProperty(u, UCHAR_ALPHABETIC) ||
         u_hasBinaryProperty(u, UCHAR_JOIN_CONTROL);
}

bool IsMark(char32_t c) {
  return (U_GET_GC_MASK(static_cast<UChar32>(c)) & U_GC_M_MASK) != 0;
}

void AppendLowercase(char32_t c, std::string* out) {
  if (c == 0x130) {  // the only character with a longer lowercase
    out->append("i\xCC\x87");
    return;
  }
  AppendUtf8(static_cast<char32_t>(u_tolower(static_cast<UChar32>(c))), out);
}

std::string Normalized(NormalForm form, absl::string_view text) {
  std::string out;
  UErrorCode error = U_ZERO_ERROR;
  const icu::Normalizer2* normalizer = GetNormalizer(form);
  const icu::StringPiece piece(text.data(), static_cast<int32_t>(text.size()));
  if (normalizer->isNormalizedUTF8(piece, error) && U_SUCCESS(error)) {
    return std::string(text);
  }
  error = U_ZERO_ERROR;
  icu::StringByteSink<std::string> sink(&out);
  normalizer->normalizeUTF8(0, piece, sink, nullptr, error);
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
