#pragma once

#include <string>
#include <vector>

#include "absl/types/span.h"
#include "scheduler/plan/plan.h"
#include "scheduler/steps/workload.h"

namespace sluice {

// How the prompts of a plan's job might be cut, other than it cuts them: its
// block without slices, and with slices as TeraPipe's dynamic programme
// (BestSlicing) has them for the plan's slowest stage, if these differ. Shapes
// that request.choices rules out, or that cannot run, are left out. None for
// one stage, one machine or without refill.
//
// The programme's lengths become a block's max_step_tokens and slice_context:
// the longest slice at the beginning of a prompt, and at the end of the longest
// one, that take no longer than its longest slice does. What other sequences
// decode, on average of `steps`, is in each slice's cost.
std::vector<BlockShape> OtherSlicings(const PlanRequest& request,
                                      const Plan& plan,
                                      absl::Span<const StepShape> steps);

// Plan::slicing: says why `plan` was chosen rather than `other`, the best plan
// that differs in whether prompts are cut into slices.
std::string SlicingReason(const Plan& plan, const Plan& other);

}  // namespace sluice
