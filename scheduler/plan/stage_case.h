#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "scheduler/cost/cost_model.h"
#include "scheduler/plan/plan.h"
#include "scheduler/steps/workload.h"

// A plan request's view of one stage, in the cost model's terms.

namespace sluice {

// The machines of a request that are alike, and those that are one.
class MachineClasses {
 public:
  explicit MachineClasses(absl::Span<const MachineProfile> machines);
  // The first machine with the same figures: all but names and remarks.
  int representative(int machine) const { return representatives_[machine]; }
  // The first worker of the same machine (MachineProfile::machine; "" is none
  // that others could be on).
  int host(int machine) const { return hosts_[machine]; }

 private:
  std::vector<int> representatives_;
  std::vector<int> hosts_;
};

// The steps of the request's job with such blocks.
std::vector<StepShape> JobSteps(const PlanRequest& request,
                                const BlockShape& block);

// Whether sequences share what they begin with in such stages of the request's
// model. They do not if layers keep a window of positions apart, with sparse
// attention, or if the KV cache of a stage lies in several tiers.
bool SharesPrefixes(const PlanRequest& request,
                    absl::Span<const StageChoice> stages);
// The request, if nothing is shared.
PlanRequest Unshared(PlanRequest request);
// Returns the plan's stages as choices.
std::vector<StageChoice> ChoicesOf(const Plan& plan);

// Positions for which a sequence in flight reserves KV: request.longest(), or
// less where KV is automatic and a stage takes pages by need, that is, on a
// machine without a device. By need, sequences at evenly spaced positions come
// to the average (the diagonal schedule, FlexGen's appendix A.2.1), given
// requests enough to spread them; the step scheduler sees to it. Positions that
// sequences share count once.
int32_t ReservedPositions(const PlanRequest& request,
                          const MachineProfile& machine, const Policy& policy,
                          const BlockShape& block);

// `policy` with the block's sizes and the request's dtype, which may use the
// tiers that its fractions name. The request must outlive the result.
StageCase MakeStageCase(const PlanRequest& request, int machine,
                        LayerRange layers, const Policy& policy,
                        const BlockShape& block);

// The time from the end of a step in one machine's stage to its beginning in
// the next's, its transfer excepted, which overlaps.
double HopSeconds(const MachineProfile& from, const MachineProfile& to);
// Returns the seconds that tokens, sampled on machine `last`, take to the
// pipeline's `first`, beside what a step costs at the coordinator: it is near
// one of both.
double WayBackSeconds(const PlanRequest& request, int last, int first);

// Steps that a request is in its block for, on average.
double StepsOfRequest(const PlanRequest& request, const BlockShape& block);

}  // namespace sluice
