#include "common/threads/retry_delay.h"

#include <algorithm>
#include <string>

#include "absl/strings/cord.h"

namespace sluice {
namespace {

constexpr char kPayload[] = "sluice/retry-delay";

}  // namespace

absl::Status WithRetryDelay(absl::Status status, absl::Duration delay) {
  delay = std::clamp(delay, absl::ZeroDuration(), absl::Hours(24));
  status.SetPayload(kPayload, absl::Cord(absl::FormatDuration(delay)));
  return status;
}

std::optional<absl::Duration> RetryDelayOf(const absl::Status& status) {
  const auto payload = status.GetPayload(kPayload);
  absl::Duration delay;
  if (!payload || !absl::ParseDuration(std::string(*payload), &delay)) {
    return std::nullopt;
  }
  return delay;
}

}  // namespace sluice
