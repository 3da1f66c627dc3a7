#pragma once

#include "absl/status/status.h"
#include "scheduler/plan/plan.h"

namespace sluice {

// Simulates the job by the plan, or a shorter one of about a million tokens,
// and corrects the plan's predictions by what the closed form is wrong for it:
// steps of unlike kinds that meet in the pipeline, and kinds of steps that were
// merged. Leaves the plan as it is where so many tokens tell too little. Errors
// as Simulate()'s.
absl::Status Rehearse(const PlanRequest& request, Plan* plan);

}  // namespace sluice
