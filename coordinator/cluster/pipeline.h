#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/cluster/cluster_options.h"
#include "coordinator/cluster/plan_numbers.h"
#include "coordinator/cluster/plan_search.h"
#include "coordinator/cluster/running_plan.h"
#include "coordinator/cluster/worker_registry.h"
#include "sluice/v1/cluster.pb.h"

namespace sluice {

// A group of workers that run the whole model together, and their plan: makes a
// new one when it is time (see DecidePlan). Knows nothing of other groups,
// whose workers it never touches. Confined to the dispatcher's thread.
class Pipeline {
 public:
  // The registry and the numbers must outlive the pipeline.
  Pipeline(const ClusterOptions& options, WorkerRegistry* workers,
           PlanNumbers* numbers);
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;

  RunningPlan& plan() { return plan_; }
  const RunningPlan& plan() const { return plan_; }
  PlanSearch& search() { return search_; }
  const PlanSearch& search() const { return search_; }

  // Sets the number of workers without which no plan is made, and the share of
  // the waiting requests that is planned for.
  void SetShape(int32_t min_workers, double share);
  int32_t min_workers() const { return options_.min_workers; }
  // Sets the user's plan, which the workers are to follow.
  void SetFixedPlan(const Plan& plan) { options_.fixed_plans = {plan}; }

  // Makes a new plan if it is time. Must be called after each event.
  void Decide();
  void OnNewJobs();
  void OnPlanned(PlanAnswer answer);

  // The reason why nothing runs; while a plan runs, the worker that it
  // excludes, or "".
  std::string detail() const;
  // The reason why the worker waits, for people; "" if it does not.
  std::string WaitsFor(WorkerId id, const AttachedWorker& worker) const;

 private:
  void Search(std::vector<WorkerId> workers, std::optional<Plan> present);
  NextPlan AssignFixed(const std::vector<StageAssignment>& stages) const;
  ClusterView View() const;
  // Whether the stages have a link that is known to be broken.
  bool AnyBroken(const std::vector<StageAssignment>& stages) const;
  // Says which link is to blame that workers can't work together.
  std::string UnlinkedText() const;
  // Whether newcomers wait for the plan of the others (see Losses).
  bool NewcomersWait() const;

  ClusterOptions options_;  // with min_workers of its own
  WorkerRegistry* const workers_;
  PlanSearch search_;
  RunningPlan plan_;
};

}  // namespace sluice
