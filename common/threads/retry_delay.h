#pragma once

#include <optional>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace sluice {

// Returns `status`, which is no OK, with the time after which the same call may
// succeed. It goes with the status from process to process.
absl::Status WithRetryDelay(absl::Status status, absl::Duration delay);

// Returns that time, if the status has one: from 0 to a day.
std::optional<absl::Duration> RetryDelayOf(const absl::Status& status);

}  // namespace sluice
