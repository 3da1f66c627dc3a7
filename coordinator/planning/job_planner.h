#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "common/machine_profile.h"
#include "coordinator/planning/phase_rows.h"
#include "coordinator/request_queue.h"
#include "scheduler/plan/layout.h"
#include "scheduler/plan/plan.h"

namespace sluice {

// A search for groups of machines, instead of one plan.
struct LayoutTask {
  int32_t replicas = 0;                   // see MakeLayout
  std::vector<std::vector<int>> present;  // groups that go on if as good
};

struct PlanTask {
  int64_t ticket = 0;   // returned with the answer
  size_t pipeline = 0;  // whose plan it is
  // Profiles of the workers that take part, in the order of the stages.
  std::vector<MachineProfile> machines;
  // The running plan, if the new one must be faster. Its stages' machines are
  // indices of `machines`.
  std::optional<Plan> present;
  double load_seconds = 0;  // until another plan would run
  // Positions of running requests, which another plan would compute again.
  double held_rows = 0;
  // The share of their max_tokens that requests generate.
  double output_share = 1;
  // The share of the requests that these machines are to take.
  double share = 1;
  std::optional<LayoutTask> layout;  // if set, groups are asked for
};

struct PlanAnswer {
  int64_t ticket = 0;
  // The new plan, or kNotFound: no request waits; kAlreadyExists: the present
  // plan is as good; or MakePlan's errors.
  absl::StatusOr<Plan> plan;
  PhaseRows rows;  // of the workload that was planned for
  // The present plan, if any, with a prediction for the waiting requests.
  std::optional<Plan> present;
  // The answer to a search for groups: new ones, or an error as of `plan`.
  absl::StatusOr<Layout> layout = absl::UnknownError("not asked for");
};

// Returns the rows that a workload's requests take. The first token of each
// answer comes of its prompt's last row.
PhaseRows RowsOf(const Workload& workload);

// Finds the best plan for a workload on these machines: MakePlan. `base` has
// the values fixed for all plans; the rest of it is filled in. The present
// plan, whose KV may be reserved for shorter requests, is predicted with that,
// and gives way at once if the longest request does not fit in.
absl::StatusOr<Plan> FindPlan(PlanRequest base, const Workload& workload,
                              const PlanTask& task,
                              std::optional<Plan>* present);

// Finds the best groups (MakeLayout) in the same way. REQUIRES: task.layout.
absl::StatusOr<Layout> FindLayout(PlanRequest base, const Workload& workload,
                                  const PlanTask& task);

// Plans for the waiting requests of `queue` by FindPlan or FindLayout, which
// may take seconds. Thread-safe.
PlanAnswer AnswerTask(const PlanRequest& base, const PlanTask& task,
                      RequestQueue* queue);

}  // namespace sluice
