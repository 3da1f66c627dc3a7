#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "scheduler/plan/plan.h"

namespace sluice {

// Writes a plan as JSON, version 1: its decisions (stages with layers and
// policy, blocks) and its prediction.
//
//   {"version": 1, "num_blocks": 2,
//    "stages": [{"worker": "a", "machine": 0, "layers": [0, 11],
//                "policy": "gbs 64 ... w 0/40/60 ...",
//                "predicted": {"seconds": 12.5, "disk read": 11.9, ...},
//                "capacities": [{"what": "host memory", "bytes": .., "limit":
//                ..}]}, ...],
//    "predicted": {"seconds": .., "tokens_per_second": .., "steps": ..,
//                  "latency_seconds": .., "binding": "disk read", "stage": 0,
//                  "bytes_per_token": {"disk read": ..}},
//    "kv_positions": 81920, "slicing": "prompts are cut into slices ...",
//    "tensor_parallel": "weights stay where they are ..."}
//
// Seconds and bytes of resources that the plan does not use are left out.
std::string PlanToJson(const Plan& plan);

// Writes the plans of several pipelines:
// {"version": 1, "pipelines": [{as above}, ...]}; a single plan as above.
std::string PlansToJson(const std::vector<Plan>& plans);

// The inverse of PlanToJson. Only "version", "stages" with "layers" and
// "policy", and "num_blocks" must be there. kInvalidArgument names the key that
// is missing, unknown or wrong, or the stage that does not begin where the one
// before ends.
absl::StatusOr<Plan> ParsePlan(absl::string_view json);

// The inverse of PlansToJson, and of PlanToJson. kInvalidArgument as
// ParsePlan's, and if there are no pipelines.
absl::StatusOr<std::vector<Plan>> ParsePlans(absl::string_view json);

// Whether a text is a plan, rather than key=value pairs.
bool LooksLikePlan(absl::string_view text);

}  // namespace sluice
