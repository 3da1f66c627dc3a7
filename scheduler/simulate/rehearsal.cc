#include <algorithm>
#include <cmath>
#include <vector>

#include "common/status_macros.h"
#include "scheduler/plan/plan_builder.h"
#include "scheduler/plan/stage_case.h"
#include "scheduler/simulate/simulator.h"

namespace sluice {
namespace {

// Fewer requests for each slot tell little of the whole.
constexpr double kMinGenerations = 3;
constexpr double kMaxTokens = 5e5;
constexpr double kMaxEvents = 3e6;  // steps, each in all stages

// The workload with about `share` of each class's requests, one at least.
Workload Shortened(const Workload& workload, double share) {
  Workload shorter = workload;
  for (LengthClass& c : shorter.classes) {
    if (c.count == 0) continue;
    c.count = std::max<int64_t>(
        1, std::llround(share * static_cast<double>(c.count)));
  }
  return shorter;
}

}  // namespace

absl::Status Rehearse(const PlanRequest& request, Plan* plan) {
  const std::vector<StageChoice> stages = ChoicesOf(*plan);
  if (request.workload.shared_tokens() > 0 &&
      !SharesPrefixes(request, stages)) {
    return Rehearse(Unshared(request), plan);
  }
  // Requests that are longer than request.max_model_len never run.
  if (plan->kv_positions < request.workload.longest()) return absl::OkStatus();
  const auto requests = static_cast<double>(request.workload.requests());
  const double slots = static_cast<double>(plan->block.gbs) *
                       plan->block.num_microbatches * plan->block.num_blocks;
  // Decoded tokens, and a chunk of each prompt.
  const double tokens = request.workload.output_tokens() + requests;
  const double events =
      tokens /
      (static_cast<double>(plan->block.gbs) * plan->block.num_microbatches) *
      static_cast<double>(plan->stages.size());
  const double affordable = std::min(kMaxTokens / tokens, kMaxEvents / events);
  const double min = std::min(1.0, kMinGenerations * slots / requests);
  if (affordable < min) return absl::OkStatus();

  PlanRequest shorter = request;
  shorter.workload = Shortened(request.workload, std::min(1.0, affordable));
  // KV is reserved, or taken by need, as in the whole job.
  Plan predicted =
      BuildPlan(shorter, stages, plan->block, JobSteps(shorter, plan->block));
  predicted.kv_positions = plan->kv_positions;
  SLUICE_ASSIGN_OR_RETURN(const SimulationResult simulated,
                          Simulate(shorter, predicted, {}));
  const auto correct = [](double of, double to, double* value) {
    if (of > 0 && to > 0) *value *= to / of;
  };
  for (size_t s = 0; s < stages.size(); ++s) {
    StagePlan& stage = plan->stages[s];
    correct(predicted.stages[s].seconds, simulated.stages[s].seconds,
            &stage.seconds);
    for (int r = 0; r < kNumResources; ++r) {
      correct(predicted.stages[s].busy[r], simulated.stages[s].busy[r],
              &stage.busy[r]);
    }
  }
  correct(predicted.seconds, simulated.seconds, &plan->seconds);
  correct(predicted.latency_seconds, simulated.latency_seconds,
          &plan->latency_seconds);
  Summarize(request, plan);
  return absl::OkStatus();
}

}  // namespace sluice
