#pragma once

#include <vector>

#include "absl/types/span.h"
#include "scheduler/plan/plan.h"

namespace sluice {

// Builds the plan of given stages whose fractions are all named (automatic KV
// that is taken by need excepted), with its predictions. `steps` are JobSteps()
// of the block. The request and the stages must have been checked.
Plan BuildPlan(const PlanRequest& request,
               const std::vector<StageChoice>& stages, const BlockShape& block,
               absl::Span<const StepShape> steps);

// Sets what follows from a plan's seconds and its stages': tokens a second,
// bytes per token, what binds.
void Summarize(const PlanRequest& request, Plan* plan);

// Plan::latency_seconds of a job of `seconds`.
double LatencySeconds(const PlanRequest& request, const BlockShape& block,
                      absl::Span<const StepShape> steps, double seconds);

}  // namespace sluice
