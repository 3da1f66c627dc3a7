#pragma once

#include <string>

#include "absl/status/status.h"
#include "scheduler/plan.h"

namespace sluice {

// "1.5 GiB"
std::string BytesText(double bytes);

// kResourceExhausted that says what FindShortage() found.
absl::Status ShortageError(const PlanRequest& request);

}  // namespace sluice
