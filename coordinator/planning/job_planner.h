#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "common/machine_profile.h"
#include "common/threads/mutex.h"
#include "common/threads/thread.h"
#include "coordinator/request_queue.h"
#include "scheduler/plan/plan.h"

namespace sluice {

// What is fixed for all plans of a coordinator.
struct PlanningOptions {
  DecoderSpec model;
  DType dtype = DType::kBFloat16;
  Split split = Split::kEven;
  PolicyChoices choices;
  int32_t max_model_len = 0;  // positions that the workers allow a sequence
  bool refill = true;
  // A plan takes a running one's place only if it is so many times as fast,
  // and saves more time than loading takes.
  double least_gain = 1.1;
};

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
// workers do with KV on disk, which they reserve for max_model_len.
absl::StatusOr<Plan> FindPlan(const PlanningOptions& options,
                              const Workload& workload, const PlanTask& task,
                              std::optional<Plan>* present);

// Searches for plans on a thread of its own: one may take seconds.
// Thread-safe.
class JobPlanner {
 public:
  using Done = std::function<void(PlanAnswer)>;

  // `queue` must outlive the planner. `done` gets each answer, in the
  // planner's thread.
  JobPlanner(RequestQueue* queue, PlanningOptions options, Done done);
  // Waits for a search under way.
  ~JobPlanner();

  // Plans for what `queue` has waiting. A task that has not begun is dropped
  // for a newer one.
  void Search(PlanTask task);

 private:
  void Run();
  PlanAnswer Answer(const PlanTask& task);

  RequestQueue* const queue_;
  const PlanningOptions options_;
  const Done done_;
  Mutex mu_;
  CondVar changed_;
  std::optional<PlanTask> next_ ABSL_GUARDED_BY(mu_);
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  Thread thread_;
};

}  // namespace sluice
