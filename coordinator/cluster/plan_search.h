#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "coordinator/cluster/cluster_options.h"
#include "coordinator/cluster/stage_assignment.h"
#include "coordinator/cluster/worker_registry.h"
#include "coordinator/planning/job_planner.h"
#include "coordinator/planning/plan_monitor.h"

namespace sluice {

// A plan that is to follow the present one.
struct NextPlan {
  std::vector<StageAssignment> stages;
  std::optional<Plan> plan;  // whose stages these are; else the workers choose
  int32_t workers = 0;       // that it could have had
  double rows = 0;           // see PlanAnswer
};

// Has plans searched for (see AnswerTask), one search at a time, when workers
// or jobs come or when what a running plan does is not what was predicted of
// it. Confined to the dispatcher's thread.
class PlanSearch {
 public:
  // Both must outlive the search.
  PlanSearch(const ClusterOptions& options, WorkerRegistry* workers)
      : options_(options), workers_(workers) {}

  // Whether a plan for these workers is to be searched for.
  bool Wanted(const std::vector<StageAssignment>& stages) const;
  // Searches for a plan of these workers, to take the place of `present` if
  // there is one. False if that is being done already.
  bool Begin(std::vector<WorkerId> workers, std::optional<Plan> present);
  // The search to be made, once.
  std::optional<PlanTask> TakeTask();

  // What becomes of an answer.
  struct Outcome {
    std::optional<NextPlan> next;   // a plan to follow
    std::optional<Plan> refreshed;  // the running one, with a new prediction
    double rows = 0;                // see PlanAnswer
    bool look_again = false;        // jobs came while it counted requests
    bool no_work = false;           // it is repeated when there is work
  };
  Outcome OnAnswer(PlanAnswer answer);

  // Jobs came. False if the plan that runs may not be theirs.
  bool OnNewJobs();
  // A plan of the planner's did not fit, or there was none: the workers choose
  // until another one comes.
  void GiveUp() { failed_ = true; }
  void OnRegistered() { failed_ = false; }

  // -- The plan that runs.

  // A plan begins to load, or gets a new prediction, that was made for a
  // workload of so many rows.
  void OnBegun(const Plan& plan, const std::vector<WorkerId>& stages,
               double rows);
  // Its loading took so long.
  void OnLoaded(absl::Duration time) {
    load_time_ = std::min(load_time_, time);
  }
  void OnEnded();
  void OnHeartbeat(int stage, const v1::Heartbeat& heartbeat);
  // Tokens computed since the coordinator began, wall seconds with steps in
  // flight, and how much of what they may generate requests do.
  void OnProgress(double rows, double seconds, double output_share);
  // Searches for a plan that follows the running one, if that does not do what
  // was predicted.
  void FollowMeasured(const Plan& plan, const std::vector<WorkerId>& stages);
  // Appends what each resource of the stage does beside what was predicted.
  void Describe(int stage, v1::WorkerInfo* info) const;

 private:
  struct Search {
    int64_t ticket = 0;
    std::vector<WorkerId> workers;
    std::optional<Plan> present;
    bool taken = false;
    bool new_jobs = false;  // came since it began
    bool no_work = false;
  };

  const ClusterOptions& options_;
  WorkerRegistry* const workers_;
  std::optional<Search> search_;
  int64_t last_ticket_ = 0;
  bool failed_ = false;
  PlanMonitor monitor_;
  double rows_ = 0, seconds_ = 0;            // since the coordinator began
  double plan_rows_ = 0, plan_seconds_ = 0;  // of these, before the plan ran
  double output_share_ = 1;
  // From a plan's beginning until it runs: the shortest that there was.
  absl::Duration load_time_ = absl::InfiniteDuration();
};

}  // namespace sluice
