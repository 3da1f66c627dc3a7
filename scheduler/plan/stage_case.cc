#include "scheduler/plan/stage_case.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "runtime/placement/stage_sizes.h"

namespace sluice {
namespace {

// Steps that differ less than these are priced as one.
constexpr int kMaxStepKinds = 8;
// Requests for each slot from which on pacing spreads them: see Paces() in
// step_scheduler.cc.
constexpr int64_t kGenerationsByNeed = 3;
// The margin for lengths that come unevenly.
constexpr double kNeedMargin = 1.05;

// Whether the model's layers, and such a policy, let sequences share pages.
bool MayShare(const PlanRequest& request, const Policy& policy) {
  const int32_t positions = request.max_model_len > 0
                                ? request.max_model_len
                                : request.workload.longest();
  return policy.sparsity >= 1 &&
         MakeKvGroups(request.model, {0, request.model.num_layers}, positions)
                 .window == 0;
}

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

bool SharesPrefixes(const PlanRequest& request,
                    absl::Span<const StageChoice> stages) {
  return std::all_of(
      stages.begin(), stages.end(), [&](const StageChoice& stage) {
        const TierFractions& kv = stage.policy.kv_cache;
        const bool device = request.machines[stage.machine].has_device();
        const int tiers = device ? (kv.device > 0) + (kv.host > 0)
                                 : (kv.device + kv.host > 0);
        return MayShare(request, stage.policy) && tiers + (kv.disk > 0) <= 1;
      });
}

PlanRequest Unshared(PlanRequest request) {
  for (LengthClass& c : request.workload.classes) c.shared = 0;
  return request;
}

std::vector<StageChoice> ChoicesOf(const Plan& plan) {
  std::vector<StageChoice> choices;
  for (const StagePlan& stage : plan.stages) {
    choices.push_back({stage.machine, stage.layers, stage.policy});
  }
  return choices;
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
  int32_t beginning = 0;
  const bool shares = MayShare(request, policy);
  for (const LengthClass& c : request.workload.classes) {
    const double weight = static_cast<double>(c.count) * c.output;
    const int32_t shared = shares && c.count > 0 ? c.shared : 0;
    positions += weight * (c.prompt - shared + c.output / 2.0);
    steps += weight;
    beginning = std::max(beginning, shared);
  }
  // A sequence wastes half a page on average, and takes one ahead. Those that
  // begin alike are together, but some of the last ones' are in flight with the
  // next ones'.
  const double need =
      kNeedMargin * (positions / steps + kPageTokens) +
      static_cast<double>(beginning) / static_cast<double>(Slots(block));
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
    const double chunks = std::ceil(static_cast<double>(c.prompt - c.shared) /
                                    (together * block.max_step_tokens));
    steps += static_cast<double>(c.count) * (chunks + c.output - 1);
  }
  return steps / static_cast<double>(request.workload.requests());
}

}  // namespace sluice
