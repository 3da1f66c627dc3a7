#pragma once

#include "absl/status/statusor.h"
#include "scheduler/plan/plan.h"
#include "server/local_models.h"

namespace sluice {

// The job that speeds are told of.
inline constexpr LengthClass kUsualRequests = {
    .prompt = 512, .output = 128, .count = 256};

// Returns the best plan of that job for a model that runs, on this machine with
// the defaults of `sluice run`. kNotFound if the machine was not measured
// before; the errors of MakePlan, and of a model that has changed meanwhile.
absl::StatusOr<Plan> PlanHere(const LocalModel& model);

}  // namespace sluice
