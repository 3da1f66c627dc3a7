#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "common/limits.h"
#include "common/machine_profile.h"
#include "coordinator/planning/plan_monitor.h"
#include "sluice/v1/pipeline.pb.h"

// What workers say of themselves, as planning knows it.

namespace sluice {

// A worker's profile, with its name and the budget that it has now. nullopt
// without one, or if it makes no sense.
std::optional<MachineProfile> ProfileOf(const v1::Register& info);

// Failures that say nothing about the worker itself: a neighbour is gone, or
// an assignment was overtaken.
bool IsTransient(absl::StatusCode code);

// Of a worker's text, what may stand in messages to clients.
std::string ClipText(const std::string& text, size_t most = kMaxFailureBytes);

ResourceTotals TotalsOf(const v1::RuntimeTotals& runtime);

}  // namespace sluice
