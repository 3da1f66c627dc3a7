#include "scheduler/plan/plan.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include "common/status_macros.h"
#include "runtime/placement/rank_limits.h"
#include "scheduler/cost/model_sizes.h"
#include "scheduler/plan/plan_builder.h"
#include "scheduler/plan/stage_case.h"
#include "scheduler/simulate/simulator.h"

namespace sluice {
namespace {

absl::Status CheckPositive(const std::vector<int32_t>& choices,
                           absl::string_view what, int32_t min) {
  for (const int32_t choice : choices) {
    if (choice < min) {
      return InvalidArgument("plan: ", what, " of ", choice, ": must be ", min,
                             " or more");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckCovers(const PlanRequest& request,
                         const std::vector<StageChoice>& stages) {
  int next = 0;
  for (const StageChoice& stage : stages) {
    if (stage.layers.begin != next || stage.layers.size() < 1) {
      return InvalidArgument("plan: a stage has layers [", stage.layers.begin,
                             ", ", stage.layers.end, ") where layer ", next,
                             " is next");
    }
    if (stage.machine < 0 ||
        stage.machine >= static_cast<int>(request.machines.size())) {
      return InvalidArgument("plan: a stage is on machine ", stage.machine,
                             " of ", request.machines.size());
    }
    next = stage.layers.end;
  }
  if (next != request.model.num_layers) {
    return InvalidArgument("plan: the stages have ", next, " of the model's ",
                           request.model.num_layers, " layers");
  }
  return absl::OkStatus();
}

// The leading rank's limits, as the ranks divide what they share.
TierLimits LeadLimits(const StageCase& stage, const StageRanks& ranks) {
  const TierLimits limits = LimitsOf(stage);
  if (stage.machine->ranks == 1) return limits;
  std::vector<const StageSizes*> all;
  for (const StageRanks::Kind& kind : ranks.kinds) {
    all.insert(all.end(), static_cast<size_t>(kind.count), &kind.sizes);
  }
  const std::vector<uint64_t> devices(
      all.size(), limits[static_cast<size_t>(Tier::kDevice)]);
  return DivideLimits(all, devices, stage.policy, limits).front();
}

// Names the fractions that a policy leaves open, as Place() does for a worker
// that loads its stage. Returns the sequences in a micro-batch for which there
// is KV: no more than block.gbs, and 1 at least. What does not fit shows in the
// capacities.
int32_t ResolveAutomatic(const PlanRequest& request, int machine,
                         LayerRange layers, const BlockShape& block,
                         Policy* policy) {
  const Policy asked = *policy;
  const StageCase stage = MakeStageCase(request, machine, layers, asked, block);
  const std::shared_ptr<const StageRanks> ranks = stage.Ranks();
  const StageSizes& sizes = ranks->lead();
  const StagePlacement placed =
      Place(sizes, stage.policy, LeadLimits(stage, *ranks));
  if (asked.automatic_weights) policy->weights = placed.weights;
  if (asked.automatic_activations) {
    const double device =
        static_cast<double>(placed.resident_batches) / block.num_microbatches;
    policy->activations = {device, 1 - device, 0};
  }
  // The room for KV bounds the sequences, each of which has its whole share.
  int32_t gbs = block.gbs;
  if (asked.automatic_kv_cache) {
    const auto on_device = static_cast<double>(placed.pages[KvGroup::kAll][0]);
    const auto on_host = static_cast<double>(placed.pages[KvGroup::kAll][1]);
    const auto all = static_cast<double>(sizes.kv_pages);
    double there = on_device + on_host;
    // A sequence lies in one tier, and none in what is left of two.
    if (there < all && on_device > 0 && on_host > 0) {
      there -= static_cast<double>(sizes.sequence_pages - 1);
    }
    gbs = static_cast<int32_t>(std::clamp(
        std::floor(block.gbs * there / all + 1e-9), 1.0, 1.0 * block.gbs));
    const double device = std::min(1.0, on_device * block.gbs / (all * gbs));
    policy->kv_cache = {device, 1 - device, 0};
  }
  policy->automatic_weights = policy->automatic_activations = false;
  policy->automatic_kv_cache =
      asked.automatic_kv_cache && !request.machines[machine].has_device();
  return gbs;
}

}  // namespace

int32_t PlanRequest::longest() const {
  const int32_t positions =
      kv_positions > 0 ? kv_positions : workload.longest();
  return max_model_len == 0 ? positions : std::min(max_model_len, positions);
}

absl::Status PlanRequest::Check() const {
  if (machines.empty()) {
    return absl::InvalidArgumentError("plan: there are no machines");
  }
  SLUICE_RETURN_IF_ERROR(CheckModel(model));
  SLUICE_RETURN_IF_ERROR(workload.Check());
  for (const MachineProfile& machine : machines) {
    SLUICE_RETURN_IF_ERROR(machine.Check());
  }
  SLUICE_RETURN_IF_ERROR(CheckPositive(choices.gbs, "gbs", 1));
  SLUICE_RETURN_IF_ERROR(
      CheckPositive(choices.num_microbatches, "num-microbatches", 1));
  SLUICE_RETURN_IF_ERROR(CheckPositive(choices.num_blocks, "blocks", 1));
  SLUICE_RETURN_IF_ERROR(
      CheckPositive(choices.max_step_tokens, "max-step-tokens", 1));
  SLUICE_RETURN_IF_ERROR(CheckPositive(choices.threads, "threads", 0));
  SLUICE_RETURN_IF_ERROR(CheckPositive(choices.ranks, "tensor-parallel", 1));
  if (choices.slice_context.value_or(0) < 0 ||
      choices.slice_context.value_or(0) > kMaxSliceContext) {
    return InvalidArgument("plan: a slice-context of ", *choices.slice_context,
                           ": must be from 0 to ", kMaxSliceContext);
  }
  if (choices.weight_formats.empty() || choices.kv_formats.empty()) {
    return absl::InvalidArgumentError(
        "plan: no format of weights or KV cache may be chosen");
  }
  if (!(max_latency_seconds >= 0)) {
    return InvalidArgument("plan: a latency of at most ", max_latency_seconds,
                           " seconds");
  }
  if (max_model_len < 0 || kv_positions < 0) {
    return InvalidArgument("plan: sequences of ", max_model_len,
                           " positions, KV for ", kv_positions);
  }
  return absl::OkStatus();
}

absl::StatusOr<Plan> EvaluatePlan(const PlanRequest& request,
                                  const std::vector<StageChoice>& stages,
                                  int32_t num_blocks) {
  SLUICE_RETURN_IF_ERROR(request.Check());
  SLUICE_RETURN_IF_ERROR(CheckPositive({num_blocks}, "blocks", 1));
  SLUICE_RETURN_IF_ERROR(CheckCovers(request, stages));
  if (HasRankChoice(request.machines)) {
    PlanRequest named = request;
    SLUICE_ASSIGN_OR_RETURN(named.machines,
                            WithNamedRanks(std::move(named.machines), stages));
    return EvaluatePlan(named, stages, num_blocks);
  }
  const Policy& first = stages.front().policy;
  BlockShape block = {
      .gbs = first.gbs,
      .num_microbatches = first.num_microbatches,
      .num_blocks = num_blocks,
      .max_step_tokens = std::max(first.max_step_tokens, first.gbs),
      .steps_in_flight = StepsInFlight(first.slicing && request.refill,
                                       static_cast<int>(stages.size())),
      .slice_context = first.slice_context,
      .refill = request.refill};
  SLUICE_RETURN_IF_ERROR(
      CheckPositive({block.gbs, block.num_microbatches, block.max_step_tokens},
                    "gbs, num-microbatches or max-step-tokens", 1));
  std::vector<StageChoice> resolved = stages;
  // The narrowest stage's room for KV decides how many sequences are in flight.
  int32_t gbs = block.gbs;
  for (StageChoice& stage : resolved) {
    gbs = std::min(gbs, ResolveAutomatic(request, stage.machine, stage.layers,
                                         block, &stage.policy));
  }
  block.gbs = gbs;
  const PlanRequest runs =
      SharesPrefixes(request, resolved) ? request : Unshared(request);
  Plan plan = BuildPlan(runs, resolved, block, JobSteps(runs, block));
  SLUICE_RETURN_IF_ERROR(Rehearse(runs, &plan));
  return plan;
}

bool HasRankChoice(const std::vector<MachineProfile>& machines) {
  return std::any_of(
      machines.begin(), machines.end(),
      [](const MachineProfile& m) { return !m.rank_choices.empty(); });
}

absl::StatusOr<std::vector<MachineProfile>> WithNamedRanks(
    std::vector<MachineProfile> machines,
    const std::vector<StageChoice>& stages) {
  for (const StageChoice& stage : stages) {
    if (stage.machine < 0 ||
        stage.machine >= static_cast<int>(machines.size())) {
      return InvalidArgument("plan: a stage is on machine ", stage.machine,
                             " of ", machines.size());
    }
    MachineProfile& machine = machines[static_cast<size_t>(stage.machine)];
    SLUICE_ASSIGN_OR_RETURN(machine, machine.WithRanks(stage.policy.ranks));
  }
  // Those in no stage have none.
  for (MachineProfile& machine : machines) machine.rank_choices.clear();
  return machines;
}

int32_t SequencePositions(const Plan& plan) {
  const int64_t sequences = int64_t{plan.block.gbs} *
                            plan.block.num_microbatches * plan.block.num_blocks;
  return static_cast<int32_t>(
      std::min<int64_t>(INT32_MAX, plan.kv_positions / sequences));
}

int32_t StepsInFlight(bool slicing, int num_stages) {
  return slicing && num_stages > 1 ? num_stages + 1 : 0;
}

bool Fits(const Plan& plan) {
  return std::all_of(
      plan.stages.begin(), plan.stages.end(), [](const StagePlan& stage) {
        return std::all_of(
            stage.capacities.begin(), stage.capacities.end(),
            [](const CapacityUse& use) { return use.bytes <= use.limit; });
      });
}

}  // namespace sluice
