#pragma once

#include <vector>

#include "absl/strings/string_view.h"

namespace sluice {

struct CharRange {
  char32_t first;
  char32_t last;
};

// The characters of a property ("L", "Nd", "Alphabetic", "Han", "Word") that
// Unicode 15 to 16 added, in order and in as few ranges as possible. Hugging
// Face's Oniguruma knows Unicode 16, PCRE2 10.42 only 14 and ICU 72 only 15.
std::vector<CharRange> AddedCharacters(absl::string_view property);

}  // namespace sluice
