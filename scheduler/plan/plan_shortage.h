#pragma once

#include <string>

#include "absl/status/status.h"
#include "scheduler/plan/plan.h"

namespace sluice {

// kResourceExhausted that says what FindShortage() found.
absl::Status ShortageError(const PlanRequest& request);

}  // namespace sluice
