#include "scheduler/plan/stage_case.h"

#include <algorithm>
#include <cmath>

namespace sluice {
namespace {

// Steps that differ less than these are priced as one.
constexpr int kMaxStepKinds = 8;
// Requests for each slot from which on pacing spreads them: see Paces() in
// step_scheduler.cc.
constexpr int64_t kGenerationsByNeed = 3;
// The margin for lengths that come unevenly.
constexpr double kNeedMargin = 1.05;

bool AreAlike(MachineProfile a, const MachineProfile& b) {
  a.name = b.name;
  a.machine = b.machine;
  a.part_of = b.part_of;
  a.fingerprint = b.fingerprint;
  a.device = b.device;
  a.remarks = b.remarks;
  return a == b;
}

int64_t Slots(const BlockShape& block) {
  return int64_t{block.gbs} * block.num_microbatches * block.num_blocks;
}

}  // namespace

MachineClasses::MachineClasses(absl::Span<const MachineProfile> machines) {
  for (size_t i = 0; i < machines.size(); ++i) {
    int representative = static_cast<int>(i);
    int host = static_cast<int>(i);
    for (size_t j = i; j-- > 0;) {
      if (representatives_[j] == static_cast<int>(j) &&
          AreAlike(machines[j], machines[i])) {
        representative = static_cast<int>(j);
      }
      if (!machines[i].machine.empty() &&
          machines[j].machine == machines[i].machine) {
        host = static_cast<int>(j);
      }
    }
    representatives_.push_back(representative);
    hosts_.push_back(host);
  }
}

std::vector<StepShape> JobSteps(const PlanRequest& request,
                                const BlockShape& block) {
  return request.refill ? StepsOf(request.workload, block, kMaxStepKinds)
                        : BlockSteps(request.workload, block);
}

int32_t ReservedPositions(const PlanRequest& request,
                          const MachineProfile& machine, const Policy& policy,
                          const BlockShape& block) {
  const int32_t longest = request.longest();
  if (!policy.automatic_kv_cache || machine.has_device() || !request.refill ||
      request.workload.requests() < kGenerationsByNeed * Slots(block)) {
    return longest;
  }
  // Average positions, over all steps of all requests.
  double positions = 0;
  double steps = 0;
  for (const LengthClass& c : request.workload.classes) {
    const double weight = static_cast<double>(c.count) * c.output;
    positions += weight * (c.prompt + c.output / 2.0);
    steps += weight;
  }
  // A sequence wastes half a page on average, and takes one ahead.
  const double need = kNeedMargin * (positions / steps + kPageTokens);
  // The longest request must fit into what there is for all.
  const double min =
      static_cast<double>(longest) / static_cast<double>(Slots(block));
  return static_cast<int32_t>(
      std::min(static_cast<double>(longest), std::ceil(std::max(need, min))));
}

StageCase MakeStageCase(const PlanRequest& request, int machine,
                        LayerRange layers, const Policy& policy,
                        const BlockShape& block) {
  StageCase stage = {.model = &request.model,
                     .machine = &request.machines[machine],
                     .layers = layers,
                     .policy = policy,
                     .num_blocks = block.num_blocks,
                     .longest = ReservedPositions(
                         request, request.machines[machine], policy, block),
                     .max_model_len = request.max_model_len,
                     .options = request.options};
  stage.policy.gbs = block.gbs;
  stage.policy.num_microbatches = block.num_microbatches;
  stage.policy.max_step_tokens = block.max_step_tokens;
  stage.policy.slicing = block.steps_in_flight > 0;
  stage.policy.slice_context = block.slice_context;
  stage.policy.dtype = request.dtype;
  if (request.choices.link_dtype != DType::kFloat32) {
    stage.policy.link_dtype = request.choices.link_dtype;
  }
  stage.may_use = SupportOf(FractionsOf(policy));
  return stage;
}

double HopSeconds(const MachineProfile& from, const MachineProfile& to) {
  const LinkProfile* link = from.Link(to.name);
  return link == nullptr ? 0 : link->latency_seconds;
}

double StepsOfRequest(const PlanRequest& request, const BlockShape& block) {
  // With slices, several chunks a round.
  const double together = std::max(
      1.0, static_cast<double>(block.steps_in_flight) / block.num_blocks);
  double steps = 0;
  for (const LengthClass& c : request.workload.classes) {
    const double chunks = std::ceil(static_cast<double>(c.prompt) /
                                    (together * block.max_step_tokens));
    steps += static_cast<double>(c.count) * (chunks + c.output - 1);
  }
  return steps / static_cast<double>(request.workload.requests());
}

}  // namespace sluice
