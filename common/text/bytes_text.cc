#include "common/text/bytes_text.h"

#include "absl/strings/str_format.h"

namespace sluice {

std::string BytesText(double bytes) {
  constexpr double kKiB = 1 << 10;
  constexpr double kMiB = 1 << 20;
  constexpr double kGiB = 1 << 30;
  if (bytes >= kGiB) return absl::StrFormat("%.1f GiB", bytes / kGiB);
  if (bytes >= kMiB) return absl::StrFormat("%.1f MiB", bytes / kMiB);
  if (bytes >= kKiB) return absl::StrFormat("%.1f KiB", bytes / kKiB);
  return absl::StrFormat("%.0f bytes", bytes);
}

}  // namespace sluice
