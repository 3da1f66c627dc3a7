#pragma once

#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "coordinator/cluster/cluster_options.h"
#include "coordinator/cluster/open_search.h"
#include "coordinator/cluster/plan_numbers.h"
#include "coordinator/cluster/worker_registry.h"
#include "coordinator/planning/job_planner.h"

namespace sluice {

// Starts searches for the groups of workers that are to be pipelines (see
// AnswerTask), one at a time, when workers or jobs come or go. Confined to the
// dispatcher's thread.
class GroupSearch {
 public:
  struct Group {
    std::vector<WorkerId> workers;
    double share = 1;  // of the requests
  };

  // All must outlive the search.
  GroupSearch(const ClusterOptions& options, WorkerRegistry* workers,
              PlanNumbers* numbers)
      : options_(options), workers_(workers), numbers_(numbers) {}

  // Whether the planner groups these workers; else rules do (DecideGroups).
  bool Groups(const std::vector<WorkerId>& workers) const;
  // Whether the groups of these workers are still to be searched for. That
  // there are none better than the present ones says nothing once none of
  // those does work any more.
  bool Wanted(const std::vector<WorkerId>& workers, bool none_works) const {
    return !search_ && (none_works || workers != searched_);
  }
  // Begins a search, for groups that replace `present` unless that is empty, if
  // so many requests wait that it is worth loading layers for so long.
  void Begin(std::vector<WorkerId> workers,
             std::vector<std::vector<WorkerId>> present,
             absl::Duration load_time, const WorkProgress& progress);
  // Returns each search that is to be made once.
  std::optional<PlanTask> TakeTask();
  bool Awaits(int64_t ticket) const {
    return search_ && search_->ticket == ticket;
  }
  // Takes the answer that is waited for. Returns the groups to be made, if the
  // present ones are not as good.
  std::optional<std::vector<Group>> OnAnswer(PlanAnswer answer);

  // Called when jobs came while nothing was computed.
  void OnNewJobs();
  void OnRegistered() { failed_ = false; }

  // What is waited for, for people; "" for nothing.
  const char* detail() const {
    return !search_           ? ""
           : search_->no_work ? "a plan is made when a job comes"
                              : "planning";
  }

 private:
  // Adds workers that the planner does without to the only pipeline, until it
  // has its least: without them it would make no plan, which may use fewer.
  void AddSpares(const std::vector<WorkerId>& workers, Group* group) const;

  struct Search : OpenSearch {
    std::vector<std::vector<WorkerId>> present;
    absl::Duration load_time;
    WorkProgress progress;
  };

  const ClusterOptions& options_;
  WorkerRegistry* const workers_;
  PlanNumbers* const numbers_;
  std::optional<Search> search_;
  std::vector<WorkerId> searched_;  // whose groups are known
  bool failed_ = false;
};

}  // namespace sluice
