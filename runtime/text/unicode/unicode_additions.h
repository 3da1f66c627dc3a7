#pragma once

#include "absl/strings/string_view.h"

namespace sluice {

// Characters of a property ("L", "Nd", "Alphabetic", "Han") that Unicode 15 to
// 16 added, as items of a PCRE2 set; "" if there are none. Hugging Face's
// Oniguruma knows Unicode 16, PCRE2 10.42 only 14; a later PCRE2 has them
// twice.
absl::string_view AddedCharacters(absl::string_view property);

}  // namespace sluice
