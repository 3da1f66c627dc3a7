#include "scheduler/plan/plan_builder.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "scheduler/cost/pipeline_time.h"
#include "scheduler/plan/stage_case.h"

namespace sluice {
namespace {

// Returns the max bytes that each tier holds.
std::vector<CapacityUse> UsesOf(const StageCase& stage,
                                const Fractions& fractions) {
  const RanksPlacement placement = PlacementOf(stage, fractions);
  const TierLimits limits = LimitsOf(stage);
  std::vector<CapacityUse> uses;
  for (const Tier tier : {Tier::kDevice, Tier::kHost, Tier::kDisk}) {
    if (tier == Tier::kDevice && !stage.machine->has_device()) continue;
    uses.push_back({std::string(CapacityName(tier)),
                    static_cast<double>(placement.use(tier).peak_bytes),
                    static_cast<double>(limits[static_cast<size_t>(tier)])});
  }
  return uses;
}

// Bytes that cross the wires in the resource's busy seconds.
double BytesOf(const MachineProfile& machine, Resource resource,
               double seconds) {
  switch (resource) {
    case Resource::kDiskRead:
      return seconds * machine.disk.read_bytes_per_second;
    case Resource::kDiskWrite:
      return seconds * machine.disk.write_bytes_per_second;
    case Resource::kHostToDevice:
      return seconds * machine.ranks * machine.host_to_device_bytes_per_second;
    case Resource::kDeviceToHost:
      return seconds * machine.ranks * machine.device_to_host_bytes_per_second;
    case Resource::kLink: {
      const LinkProfile* link = machine.Link("");
      return link == nullptr ? 0 : seconds * link->bytes_per_second;
    }
    case Resource::kDeviceCompute:
    case Resource::kHostCompute:
      break;
  }
  return 0;
}

// Returns how much kinds of steps mix in the pipeline: requests of one length
// begin and end together, in all blocks; unlike outputs spread them. It is the
// chance that two requests are of unlike classes if outputs differ much. Fitted
// to simulated jobs, for ranking; Rehearse() says what it is for a given plan.
double MixingOf(const PlanRequest& request) {
  if (!request.refill) return 0;
  double n = 0, sum = 0, squares = 0, alike = 0;
  for (const LengthClass& c : request.workload.classes) {
    const auto count = static_cast<double>(c.count);
    n += count;
    sum += count * c.output;
    squares += count * c.output * c.output;
    alike += count * count;
  }
  const double mean = sum / n;
  const double deviation = std::sqrt(std::max(0.0, squares / n - mean * mean));
  return std::max(0.1,
                  (1 - alike / (n * n)) * std::min(1.0, 2 * deviation / mean));
}

double StepsIn(absl::Span<const StepShape> steps) {
  double count = 0;
  for (const StepShape& step : steps) count += step.count;
  return count;
}

// Returns the steps that are in the pipeline together with such a one.
double Together(const StepShape& step, const BlockShape& block) {
  return step.in_flight > 0 ? step.in_flight : block.num_blocks;
}

}  // namespace

double LatencySeconds(const PlanRequest& request, const BlockShape& block,
                      absl::Span<const StepShape> steps, double seconds) {
  const double slots = static_cast<double>(block.gbs) * block.num_microbatches *
                       block.num_blocks;
  const auto requests = static_cast<double>(request.workload.requests());
  if (!block.refill) return seconds / std::ceil(requests / slots);
  double rounds = 0;
  for (const StepShape& step : steps)
    rounds += step.count / Together(step, block);
  return rounds > 0
             ? std::min(1.0, StepsOfRequest(request, block) / rounds) * seconds
             : 0;
}

Plan BuildPlan(const PlanRequest& request,
               const std::vector<StageChoice>& stages, const BlockShape& block,
               absl::Span<const StepShape> steps) {
  const MachineClasses classes(request.machines);
  Plan plan;
  plan.block = block;
  plan.steps = StepsIn(steps);
  std::vector<PipelineStage> pipeline;
  std::vector<std::vector<double>> seconds;
  double step_seconds = 0;
  for (const StageChoice& choice : stages) {
    const MachineProfile& machine = request.machines[choice.machine];
    StageCase stage = MakeStageCase(request, choice.machine, choice.layers,
                                    choice.policy, block);
    stage.ranks = stage.Ranks();
    const Fractions fractions = FractionsOf(choice.policy);
    StagePlan planned = {.worker = machine.name,
                         .machine = choice.machine,
                         .layers = choice.layers,
                         .policy = stage.policy,
                         .capacities = UsesOf(stage, fractions)};
    std::vector<double> of_steps;
    for (const StepShape& step : steps) {
      of_steps.push_back(
          PriceStep(stage, step, fractions, step.count, &planned.busy));
      planned.seconds += step.count * of_steps.back();
    }
    if (!pipeline.empty()) {
      pipeline.back().hop_seconds =
          HopSeconds(request.machines[plan.stages.back().machine], machine);
    }
    pipeline.push_back({.machine = classes.host(choice.machine)});
    seconds.push_back(std::move(of_steps));
    step_seconds = std::max(step_seconds, machine.step_seconds);
    // Whole pages for each sequence, as the capacities count them.
    const int64_t kv_positions = stage.Sizes()->kv_pages * kPageTokens;
    plan.kv_positions = plan.stages.empty()
                            ? kv_positions
                            : std::min(plan.kv_positions, kv_positions);
    plan.stages.push_back(std::move(planned));
  }
  step_seconds +=
      WayBackSeconds(request, stages.back().machine, stages.front().machine);
  std::vector<double> rounds, in_flight;
  for (const StepShape& step : steps) {
    in_flight.push_back(Together(step, block));
    rounds.push_back(step.count / in_flight.back());
  }
  plan.seconds = JobSeconds(pipeline, seconds, rounds, block.num_blocks,
                            step_seconds, MixingOf(request), in_flight);
  plan.latency_seconds = LatencySeconds(request, block, steps, plan.seconds);

  Summarize(request, &plan);
  return plan;
}

void Summarize(const PlanRequest& request, Plan* plan) {
  const MachineClasses classes(request.machines);
  const double tokens = request.workload.output_tokens();
  if (plan->seconds > 0) plan->tokens_per_second = tokens / plan->seconds;
  std::map<int, double> machine_seconds;
  for (const StagePlan& stage : plan->stages) {
    machine_seconds[classes.host(stage.machine)] += stage.seconds;
  }
  plan->bytes_per_token = {};
  double max_machine = -1;
  double max_busy = -1;
  for (size_t s = 0; s < plan->stages.size(); ++s) {
    const StagePlan& stage = plan->stages[s];
    const double machine = machine_seconds[classes.host(stage.machine)];
    for (int r = 0; r < kNumResources; ++r) {
      plan->bytes_per_token[r] +=
          BytesOf(request.machines[stage.machine], static_cast<Resource>(r),
                  stage.busy[r]) /
          tokens;
      if (machine < max_machine ||
          (machine == max_machine && stage.busy[r] <= max_busy)) {
        continue;
      }
      max_machine = machine;
      max_busy = stage.busy[r];
      plan->binding_stage = static_cast<int>(s);
      plan->binding_resource = static_cast<Resource>(r);
    }
  }
}

}  // namespace sluice
