#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/kv/kv_layout.h"
#include "scheduler/cost/cost_model.h"
#include "scheduler/plan/plan.h"
#include "scheduler/simulate/event_pipeline.h"

// A job on a cluster, step by step and event by event, without either: the step
// scheduler forms the steps, the cost model says what each takes in each stage.

namespace sluice {

struct SimulationOptions {
  int32_t page_tokens = kPageTokens;  // positions of a KV page
  int64_t max_timeline_events = 0;    // kept in SimulationResult::timeline
};

struct SimulatedStage {
  ResourceSeconds busy = {};
  double seconds = 0;      // of its steps
  double utilization = 0;  // share of the job's time
};

struct SimulationResult {
  double seconds = 0;  // of the job
  int64_t steps = 0;
  int64_t tokens = 0;  // generated
  double tokens_per_second = 0;
  double latency_seconds = 0;  // from admission to the end, on average
  std::vector<SimulatedStage> stages;
  std::vector<StageEvent> timeline;
};

// Runs the request's workload by the plan: classes evenly mixed, each request
// generating its class's `output` tokens; KV pages as Plan::kv_positions says.
// Deterministic. Stages that are alike are priced once for each step, so that
// hundreds of machines cost little more than one.
//
// kInvalidArgument: as request.Check() says; a plan without stages, or with
// sizes that the step scheduler refuses, or too few KV positions for the
// longest request.
absl::StatusOr<SimulationResult> Simulate(const PlanRequest& request,
                                          const Plan& plan,
                                          const SimulationOptions& options);

// Simulates the job by the plan, or a shorter one of about half a million
// tokens, and corrects the plan's predictions by what the closed form is wrong
// for it: steps of unlike kinds that meet in the pipeline, and kinds of steps
// that were merged. Leaves the plan as it is where so many tokens tell too
// little. Errors as Simulate()'s.
absl::Status Rehearse(const PlanRequest& request, Plan* plan);

}  // namespace sluice
