#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "common/machine_profile.h"
#include "coordinator/request_queue.h"
#include "scheduler/plan/plan.h"

namespace sluice {

struct PlanTask {
  int64_t ticket = 0;  // comes back with the answer
  // Of the workers that take part, in the order of the stages.
  std::vector<MachineProfile> machines;
  // The plan that runs, if there is one to be beaten. Its stages' machines are
  // indices of `machines`.
  std::optional<Plan> present;
  double load_seconds = 0;  // until another plan would run
  // How much of what they may generate requests do.
  double output_share = 1;
};

struct PlanAnswer {
  int64_t ticket = 0;
  // kNotFound: no request waits. kAlreadyExists: the present plan is as good.
  // Others as MakePlan's.
  absl::StatusOr<Plan> plan;
  // Prompt and generated tokens of the workload that was planned for.
  double rows = 0;
  // Of the present plan, if there was one, for what waits now.
  std::optional<Plan> present;
};

// The best plan for a workload on these machines: MakePlan, with what the
// workers do with KV on disk, which they reserve for all positions that they
// allow a sequence: `base.most_positions`. `base` is what is fixed for all
// plans: the rest of it is filled in.
absl::StatusOr<Plan> FindPlan(PlanRequest base, const Workload& workload,
                              const PlanTask& task,
                              std::optional<Plan>* present);

// Plans for what `queue` has waiting: FindPlan, which may take seconds.
// Thread-safe.
PlanAnswer AnswerTask(const PlanRequest& base, const PlanTask& task,
                      RequestQueue* queue);

}  // namespace sluice
