#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

// Python's operations on text, as sequences of code points. Strings here are
// valid UTF-8.

namespace sluice {

bool IsSpace(char32_t c);  // str.isspace
bool IsPrintable(char32_t c);
bool IsAlpha(char32_t c);
bool IsDecimal(char32_t c);
bool IsDigit(char32_t c);
bool IsNumeric(char32_t c);  // str.isnumeric: any numeric type
bool IsUpper(char32_t c);
bool IsLower(char32_t c);
bool IsTitle(char32_t c);
bool IsIdentifierStart(char32_t c);
bool IsIdentifierPart(char32_t c);

std::string ToUpper(absl::string_view text);
std::string ToLower(absl::string_view text);
std::string CaseFold(absl::string_view text);
// Returns the first character in title case, the others in lower case.
std::string Capitalize(absl::string_view text);
// Does str.title(): every run of cased characters is capitalized.
std::string TitleCase(absl::string_view text);

// Do str.strip, lstrip and rstrip; `chars` nullptr means white space.
absl::string_view Strip(absl::string_view text, const std::string* chars,
                        bool left, bool right);

// Appends a character as Python's escape: "\xe9", "\u20ac" or "\U0001f600".
void AppendPythonEscape(uint32_t c, std::string* out);
// Returns repr() of a string, with Python's quotes and escapes.
std::string QuotePython(absl::string_view text);

}  // namespace sluice
