#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "scheduler/plan/plan.h"

// Which machines work together: disjoint groups, each a pipeline with the whole
// model, that share a job's requests (AlpaServe's replicas of model parallel
// groups, section 4.4.2, without its deadlines). Pure and deterministic.

namespace sluice {

// One of a layout's groups.
struct PipelinePlan {
  std::vector<int> machines;  // indices in PlanRequest::machines, ascending
  double share = 1;           // of the job's requests
  Plan plan;  // for its share; stages name PlanRequest's machines
};

struct Layout {
  // In the order of their first machines.
  std::vector<PipelinePlan> pipelines;
  // Machines that no pipeline uses: the model does not fit them, or the job
  // would hardly end sooner.
  std::vector<int> spares;
  double seconds = 0;            // of the job
  double tokens_per_second = 0;  // generated, all pipelines together
};

struct LayoutResult {
  Layout best;
  // What else the best layout's only pipeline was chosen from; empty if it has
  // several.
  std::vector<Alternative> rejected_plans;
  // The best layout with each other number of pipelines, and of as many
  // pipelines in another grouping.
  std::vector<Alternative> rejected;
  int64_t groups = 0;  // that were planned for
};

// The time of a job of several pipelines: that of the slowest; but where
// pipelines are on the same machine (MachineProfile::machine), whose cores and
// disk its workers share, no less than all their steps there together.
double LayoutSeconds(const PlanRequest& request,
                     const std::vector<PipelinePlan>& pipelines);

// The layout with the least predicted time of the job: `replicas` pipelines, or
// as many as are best if it is 0. Requests are shared by the pipelines' rates;
// where they are few, each pipeline is planned for as many as it gets.
//
// All groupings of up to 6 unlike machines are tried, and of any number of
// machines that are alike those with groups of equal size; more unlike machines
// are first grouped by speed, equally fast groups or like with like, and then
// changed, one machine or a pair at a time, as long as that helps. Of layouts
// that take about as long (2 %), the one of fewer pipelines is best, as each
// has to load the whole model. All pipelines have the same formats of weights
// and KV.
//
// Errors as MakePlan's; kInvalidArgument if there are fewer machines than
// replicas; kResourceExhausted if the model does not fit so many groups of
// them: how many it fits, and what is missing for more.
absl::StatusOr<LayoutResult> MakeLayout(const PlanRequest& request,
                                        int32_t replicas);

// Says what given groups would do, each with the best plan for its share.
// Errors as MakePlan's, of the first group that has one.
absl::StatusOr<Layout> EvaluateLayout(
    const PlanRequest& request, const std::vector<std::vector<int>>& groups);

// Calls `take` with each way to divide machines into groups, where machines of
// the same kind are not told apart; `kinds` has each machine's. For few
// machines.
void ForEachGrouping(
    const std::vector<int>& kinds,
    absl::FunctionRef<void(const std::vector<std::vector<int>>& groups)> take);

}  // namespace sluice
