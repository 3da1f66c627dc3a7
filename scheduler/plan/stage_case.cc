#include "scheduler/plan/stage_case.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"

namespace sluice {
namespace {

// Steps that differ less than these are priced as one.
constexpr int kMaxStepKinds = 8;
// Requests for each slot from which on pacing spreads them: see Paces() in
// step_scheduler.cc.
constexpr int64_t kGenerationsByNeed = 3;
// The margin for lengths that come unevenly.
constexpr double kNeedMargin = 1.05;

// Returns a profile without what tells machines apart that cost the same.
MachineProfile Anonymous(MachineProfile m) {
  m.name.clear();
  m.machine.clear();
  m.part_of.clear();
  m.fingerprint.clear();
  m.device.clear();
  m.remarks.clear();
  m.disturbed = false;
  m.cores = 0;
  return m;
}

int64_t Slots(const BlockShape& block) {
  return int64_t{block.gbs} * block.num_microbatches * block.num_blocks;
}

}  // namespace

MachineClasses::MachineClasses(absl::Span<const MachineProfile> machines) {
  // The first machine of each kind: few, where there are many machines.
  std::vector<std::pair<int, MachineProfile>> kinds;
  absl::flat_hash_map<absl::string_view, int> hosts;
  for (size_t i = 0; i < machines.size(); ++i) {
    const auto index = static_cast<int>(i);
    MachineProfile anonymous = Anonymous(machines[i]);
    const auto kind =
        std::find_if(kinds.begin(), kinds.end(),
                     [&](const auto& k) { return k.second == anonymous; });
    representatives_.push_back(kind == kinds.end() ? index : kind->first);
    if (kind == kinds.end()) kinds.emplace_back(index, std::move(anonymous));
    hosts_.push_back(
        machines[i].machine.empty()
            ? index
            : hosts.try_emplace(machines[i].machine, index).first->second);
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
  // Where there is a choice, one rank is what the figures are of.
  if (!stage.machine->rank_choices.empty()) {
    stage.policy.ranks = stage.machine->ranks;
  }
  stage.may_use = SupportOf(FractionsOf(policy));
  return stage;
}

double HopSeconds(const MachineProfile& from, const MachineProfile& to) {
  const LinkProfile* link = from.Link(to.name);
  return link == nullptr ? 0 : link->latency_seconds;
}

double WayBackSeconds(const PlanRequest& request, int last, int first) {
  return last == first
             ? 0
             : HopSeconds(request.machines[last], request.machines[first]);
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
