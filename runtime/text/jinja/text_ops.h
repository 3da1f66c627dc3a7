#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "runtime/text/jinja/value.h"

// Operations of Python's str that filters and methods share.

namespace sluice::jinja {

class Services;

// Does str.replace; count < 0 means all. Charged.
Value ReplaceText(Services& in, const std::string& text,
                  const std::string& from, const std::string& to, Int count);
// Does str.splitlines.
std::vector<std::string> SplitLines(absl::string_view text, bool keep_ends);
// Does str.center ('^'), ljust ('<'), rjust ('>') to code points. Charged.
Value Pad(Services& in, const std::string& text, Int width,
          const std::string& fill, char align);
// Do float(text) and int(text, base); nullopt for Python's ValueError.
std::optional<double> ParseFloat(absl::string_view text);
std::optional<Int> ParseInt(absl::string_view text, int base);
// Do str.islower and str.isupper.
bool IsLowerText(absl::string_view text);
bool IsUpperText(absl::string_view text);
// Does round(number, digits) of a float.
double RoundDecimal(double number, int digits);

}  // namespace sluice::jinja
