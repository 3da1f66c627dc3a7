#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "common/text/utf8.h"

namespace sluice {

// Character classes as Hugging Face tokenizers has them outside its regular
// expressions. They come from several Rust libraries, each of which knows
// another version of Unicode.
bool IsWhitespace(char32_t c);   // White_Space
bool IsNumber(char32_t c);       // Nd, Nl, No; Unicode 17
bool IsPunctuation(char32_t c);  // ASCII punctuation, and P of Unicode 8
// Matches \w: Alphabetic, M, Nd, Pc, Join_Control; Unicode 16
bool IsWordChar(char32_t c);
bool IsMark(char32_t c);  // M; Unicode 9
// The number of a script of Unicode 9; nullopt for a space and for characters
// without one. Hiragana and Katakana count as Han.
std::optional<int> ScriptOf(char32_t c);

// Appends the lowercase of `c`, without regard to its neighbours.
void AppendLowercase(char32_t c, std::string* out);

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };
// Normalizes as of Unicode 9: characters added later stay as they are and count
// as starters. `text` must be valid UTF-8.
std::string Normalized(NormalForm form, absl::string_view text);

// GPT-2's bijection of bytes to printable characters (bytes_to_unicode).
struct ByteAlphabet {
  std::array<char32_t, 256> char_of_byte;
  std::array<int16_t, 0x180> byte_of_char;  // -1: no byte
  std::array<std::string, 256> text_of_byte;

  // Returns the byte of `c`, or -1.
  int ByteOf(char32_t c) const { return c < 0x180 ? byte_of_char[c] : -1; }
};
const ByteAlphabet& GetByteAlphabet();

// Appends the characters of `bytes`.
void AppendByteChars(absl::string_view bytes, std::string* out);
// Appends the bytes of `chars`. If one of them has no byte, appends nothing and
// returns false.
inline bool AppendBytesOfChars(absl::string_view chars, std::string* bytes) {
  const ByteAlphabet& alphabet = GetByteAlphabet();
  const size_t before = bytes->size();
  for (size_t pos = 0; pos < chars.size();) {
    const int byte = alphabet.ByteOf(DecodeUtf8(chars, &pos));
    if (byte < 0) {
      bytes->resize(before);
      return false;
    }
    bytes->push_back(static_cast<char>(byte));
  }
  return true;
}

}  // namespace sluice
