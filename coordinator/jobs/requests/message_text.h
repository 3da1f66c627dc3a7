#pragma once

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace sluice {

// Characters (code points) of valid UTF-8.
size_t CountCharacters(absl::string_view text);

// As a JSON string; what is not UTF-8 becomes U+FFFD.
std::string QuoteJson(absl::string_view text);

// A value as error messages show it: in double quotes, control characters and
// quotes escaped, what is not UTF-8 replaced, cut with "..." after about
// `max_bytes`.
std::string QuoteForMessage(absl::string_view text, size_t max_bytes = 64);

}  // namespace sluice
