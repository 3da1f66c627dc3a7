#pragma once

#include <optional>

#include "common/machine_profile.h"
#include "coordinator/planning/plan_monitor.h"
#include "sluice/v1/pipeline.pb.h"

// What workers say of themselves, as planning knows it.

namespace sluice {

// A worker's profile, with its name and the budget that it has now. nullopt
// without one, or if it makes no sense.
std::optional<MachineProfile> ProfileOf(const v1::Register& info);

ResourceTotals TotalsOf(const v1::RuntimeTotals& runtime);

}  // namespace sluice
