#pragma once

#include <vector>

#include "scheduler/plan/layout.h"
#include "scheduler/plan/plan.h"

namespace sluice {

// The pipeline of a group with a plan whose stages name the group's machines by
// their index in it.
PipelinePlan PipelineOf(const PlanRequest& request,
                        const std::vector<int>& group, const Plan& plan,
                        double share);

// The groups as pipelines, which share the job by the rates of their plans.
// Each plan is for a share that is about right, and is made longer or shorter
// in proportion.
std::vector<PipelinePlan> ShareByRates(
    const PlanRequest& request, const std::vector<std::vector<int>>& groups,
    const std::vector<const Plan*>& plans);

}  // namespace sluice
