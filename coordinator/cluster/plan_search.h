#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "coordinator/cluster/cluster_options.h"
#include "coordinator/cluster/open_search.h"
#include "coordinator/cluster/plan_numbers.h"
#include "coordinator/cluster/stage_assignment.h"
#include "coordinator/cluster/worker_registry.h"
#include "coordinator/planning/job_planner.h"
#include "coordinator/planning/plan_monitor.h"

namespace sluice {

// A plan that is to follow the present one.
struct NextPlan {
  std::vector<StageAssignment> stages;
  std::optional<Plan> plan;  // the plan of `stages`; else the workers choose
  int32_t workers = 0;       // available when it was made
  PhaseRows rows;            // see PlanAnswer
};

// Starts searches for plans (see AnswerTask), one at a time, when workers or
// jobs come, or when a running plan does not perform as predicted. Confined to
// the dispatcher's thread.
class PlanSearch {
 public:
  // All must outlive the search.
  PlanSearch(const ClusterOptions& options, WorkerRegistry* workers,
             PlanNumbers* numbers)
      : options_(options), workers_(workers), numbers_(numbers) {}

  // Sets the share of the waiting requests that plans are for.
  void SetShare(double share) { share_ = share; }

  // Whether a plan for these workers is to be searched for.
  bool Wanted(const std::vector<StageAssignment>& stages) const;
  // Begins to search for a plan of these workers, which replaces `present` if
  // there is one. Returns false if such a search runs already.
  bool Begin(std::vector<WorkerId> workers, std::optional<Plan> present);
  // Returns each search that is to be made once.
  std::optional<PlanTask> TakeTask();

  // The consequence of an answer.
  struct Outcome {
    std::optional<NextPlan> next;   // a plan to follow
    std::optional<Plan> refreshed;  // the running one, with a new prediction
    PhaseRows rows;                 // see PlanAnswer
    bool look_again = false;        // jobs came while it counted requests
    bool no_work = false;           // it is repeated when there is work
  };
  Outcome OnAnswer(PlanAnswer answer);
  // Whether the answer with this ticket is waited for.
  bool Awaits(int64_t ticket) const {
    return search_ && search_->ticket == ticket;
  }

  // Called when jobs come. Returns false if the running plan may not fit them.
  bool OnNewJobs();
  // Called if a plan of the planner's did not fit, or there was none: the
  // workers choose until another plan comes.
  void GiveUp() { failed_ = true; }
  void OnRegistered() {
    failed_ = false;
    replacements_ = 0;
  }

  // -- The plan that runs.

  // Called when a plan begins to load, or gets a new prediction; `rows` is the
  // size of the workload that it was made for.
  void OnBegun(const Plan& plan, const std::vector<WorkerId>& stages,
               const PhaseRows& rows);
  // Called when the plan has loaded in this time.
  void OnLoaded(absl::Duration time) {
    load_time_ = std::min(load_time_, time);
  }
  // The shortest time that a plan took to load; infinite before the first.
  absl::Duration load_time() const { return load_time_; }
  double output_share() const { return progress_.output_share; }
  double held_rows() const { return progress_.held_rows; }
  void OnEnded();
  void OnHeartbeat(int stage, const v1::Heartbeat& heartbeat);
  void OnProgress(const WorkProgress& progress);
  // Searches for a plan to follow the running one, if that does not perform as
  // predicted.
  void FollowMeasured(const Plan& plan, const std::vector<WorkerId>& stages);
  // Appends the measured and predicted use of each resource of the stage.
  void Describe(int stage, v1::WorkerInfo* info) const;

 private:
  struct Search : OpenSearch {
    std::optional<Plan> present;
  };

  const ClusterOptions& options_;
  WorkerRegistry* const workers_;
  PlanNumbers* const numbers_;
  std::optional<Search> search_;
  double share_ = 1;
  bool failed_ = false;
  // Of plans by better ones, since a worker came or a plan began for new work.
  int replacements_ = 0;
  PlanMonitor monitor_;
  WorkProgress progress_;
  WorkProgress before_;  // the part before the plan ran
  // The shortest time from a plan's beginning until it ran.
  absl::Duration load_time_ = absl::InfiniteDuration();
};

}  // namespace sluice
