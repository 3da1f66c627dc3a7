#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

// Text as Python sees it: sequences of code points. Strings here are valid
// UTF-8 (JSON and the template's source are checked on the way in).

namespace sluice::jinja {

bool IsValidUtf8(absl::string_view text);

// Bytes of the code point that starts at `lead`.
size_t Utf8Length(unsigned char lead);
void AppendUtf8(uint32_t code_point, std::string& out);
// Decodes the code point at `pos` and moves `pos` past it.
uint32_t NextCodePoint(absl::string_view text, size_t& pos);
size_t CountCodePoints(absl::string_view text);
std::vector<uint32_t> ToCodePoints(absl::string_view text);
std::string FromCodePoints(const std::vector<uint32_t>& code_points);

bool IsSpace(uint32_t c);  // str.isspace
bool IsPrintable(uint32_t c);
bool IsAlpha(uint32_t c);
bool IsDecimal(uint32_t c);
bool IsDigit(uint32_t c);
bool IsNumeric(uint32_t c);
bool IsUpper(uint32_t c);
bool IsLower(uint32_t c);
bool IsTitle(uint32_t c);
bool IsIdentifierStart(uint32_t c);
bool IsIdentifierPart(uint32_t c);

std::string ToUpper(absl::string_view text);
std::string ToLower(absl::string_view text);
std::string CaseFold(absl::string_view text);
// The first character in title case, the others in lower case.
std::string Capitalize(absl::string_view text);
// str.title(): every run of cased characters is capitalized.
std::string TitleCase(absl::string_view text);

// str.strip and its kin; `chars` nullptr means white space.
absl::string_view Strip(absl::string_view text, const std::string* chars,
                        bool left, bool right);

// repr() of a string: quotes chosen and escapes as in Python.
std::string QuotePython(absl::string_view text);
// A JSON string literal as json.dumps writes it.
std::string QuoteJson(absl::string_view text, bool ensure_ascii);

}  // namespace sluice::jinja
