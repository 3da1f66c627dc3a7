#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <utility>
#include <vector>

#include "scheduler/plan/layout.h"
#include "scheduler/simulate/simulator.h"
#include "tests/unit/scheduler/plan_testing.h"

// Layouts beside brute force, by the simulator.

namespace sluice {

// A request with few choices, so that a case takes milliseconds.
inline PlanRequest SmallRequest(std::vector<MachineProfile> machines,
                                int layers = 8) {
  PlanRequest request = TestRequest(std::move(machines), layers);
  request.workload.classes = {{100, 20, 600}};
  request.choices.gbs = {16, 64};
  request.choices.num_microbatches = {1};
  request.choices.num_blocks = {1, 2, 4};
  request.choices.max_step_tokens = {512};
  return request;
}

// The seconds that the simulator says; infinite if a group does not fit.
inline double SimulatedSeconds(const PlanRequest& request,
                               const Layout& layout) {
  std::vector<PipelinePlan> simulated;
  for (const PipelinePlan& pipeline : layout.pipelines) {
    PlanRequest part = request;
    part.workload = ShareOf(request.workload, pipeline.share);
    const auto result = Simulate(part, pipeline.plan, SimulationOptions());
    EXPECT_TRUE(result.ok()) << result.status();
    if (!result.ok()) return INFINITY;
    PipelinePlan& with = simulated.emplace_back(pipeline);
    with.plan.seconds = result->seconds;
    for (size_t s = 0; s < with.plan.stages.size(); ++s) {
      with.plan.stages[s].seconds = result->stages[s].seconds;
    }
  }
  return LayoutSeconds(request, simulated);
}

// The least seconds of all groupings.
inline double BestSimulated(const PlanRequest& request) {
  // All machines are told apart.
  std::vector<int> kinds(request.machines.size());
  for (size_t m = 0; m < kinds.size(); ++m) kinds[m] = static_cast<int>(m);
  double best = INFINITY;
  std::map<std::vector<int>, bool> fits;
  ForEachGrouping(kinds, [&](const std::vector<std::vector<int>>& groups) {
    std::vector<std::vector<int>> usable;
    for (const std::vector<int>& group : groups) {
      const auto [it, is_new] = fits.try_emplace(group, false);
      if (is_new) it->second = EvaluateLayout(request, {group}).ok();
      if (it->second) usable.push_back(group);
    }
    if (usable.empty()) return;
    const auto layout = EvaluateLayout(request, usable);
    if (layout.ok()) best = std::min(best, SimulatedSeconds(request, *layout));
  });
  return best;
}

}  // namespace sluice
