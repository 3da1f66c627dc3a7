#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "scheduler/plan/plan.h"
#include "tests/bench/paper/paper_case.h"

namespace sluice {

// FlexGen's published policy beside the planner's own, in one cost model: the
// same machine, model, formats to choose from and way of running (FlexGen's).
struct SearchComparison {
  double flexgen = 0;  // tokens/s of the published policy, as it was run
  // The same policy with slots refilled and prompts in chunks, at the best
  // size of steps: what of the planner's gain is not the policy's.
  double flexgen_refilled = 0;
  Plan planned;
};
absl::StatusOr<SearchComparison> CompareSearch(const PublishedRun& run);

}  // namespace sluice
