#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace sluice {

// Rewrites a regular expression from Oniguruma's Ruby syntax (which Hugging
// Face tokenizers uses) into PCRE2's, to be compiled with UTF, UCP and
// MULTILINE and with LF as the only newline. These are rewritten: \s \w \b \h
// \v and their opposites, scripts in \p{..}, sets in sets and &&, X{n,m}+ (a
// repeat in Ruby, possessive in PCRE2), {,n}, the scope of (?i), and (?m)
// (which lets "." match newlines). kUnimplemented names a construct without an
// equivalent; PCRE2 reports plain errors.
absl::StatusOr<std::string> TranslateOniguruma(absl::string_view pattern);

}  // namespace sluice
