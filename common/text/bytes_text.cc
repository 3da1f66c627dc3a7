#include "common/text/bytes_text.h"

#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "common/status_macros.h"

namespace sluice {
namespace {

constexpr double kMinWithoutUnit = 1 << 20;

}  // namespace

std::string BytesText(double bytes) {
  constexpr double kKiB = 1 << 10;
  constexpr double kMiB = 1 << 20;
  constexpr double kGiB = 1 << 30;
  if (bytes >= kGiB) return absl::StrFormat("%.1f GiB", bytes / kGiB);
  if (bytes >= kMiB) return absl::StrFormat("%.1f MiB", bytes / kMiB);
  if (bytes >= kKiB) return absl::StrFormat("%.1f KiB", bytes / kKiB);
  return absl::StrFormat("%.0f bytes", bytes);
}

absl::StatusOr<uint64_t> ParseByteSize(absl::string_view text) {
  const absl::Status error =
      InvalidArgument("size \"", text,
                      "\" is not a positive number of bytes, as 8GiB or 500MB");
  size_t digits = 0;
  while (digits < text.size() &&
         (absl::ascii_isdigit(text[digits]) || text[digits] == '.')) {
    ++digits;
  }
  double number = 0;
  if (digits == 0 || !absl::SimpleAtod(text.substr(0, digits), &number)) {
    return error;
  }
  std::string unit =
      absl::AsciiStrToLower(absl::StripAsciiWhitespace(text.substr(digits)));
  double scale = 1;
  if (!unit.empty() && unit != "b") {
    const size_t power = std::string("kmgt").find(unit[0]);
    if (power == std::string::npos) return error;
    const std::string suffix = unit.substr(1);
    if (!suffix.empty() && suffix != "b" && suffix != "ib") return error;
    scale = std::pow(suffix == "b" ? 1000.0 : 1024.0, power + 1.0);
  }
  const double bytes = number * scale;
  if (!(bytes >= 1) || bytes >= 1e18) return error;
  if (unit.empty() && bytes < kMinWithoutUnit) {
    return InvalidArgument("size \"", text, "\" is ", text, " bytes; was ",
                           text, "GiB meant? Below 1 MiB a unit must be said (",
                           text, "B for bytes)");
  }
  return static_cast<uint64_t>(bytes);
}

}  // namespace sluice
