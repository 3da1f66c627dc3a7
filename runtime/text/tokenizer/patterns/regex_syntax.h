#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace sluice {

// Rewrites a regular expression from Oniguruma's Ruby syntax (which Hugging
// Face tokenizers uses) into PCRE2's, to be compiled with UTF, UCP and
// MULTILINE and with LF as the only newline. What differs and is rewritten:
// \s \w \b \h \v and their opposites, scripts in \p{..}, sets in sets and &&,
// X{n,m}+ (a repeat in Ruby, possessive in PCRE2), {,n}, the scope of (?i), and
// (?m) (which lets "." match newlines). kUnimplemented names a construct that
// has no equal; what is plainly wrong is left for PCRE2 to complain about.
absl::StatusOr<std::string> TranslateOniguruma(absl::string_view pattern);

}  // namespace sluice
