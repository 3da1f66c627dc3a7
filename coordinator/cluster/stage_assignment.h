#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/types.h"
#include "coordinator/cluster/worker_stream.h"

// Decides which workers form the pipeline. Pure: a snapshot in, a decision out.

namespace sluice {

struct WorkerView {
  WorkerId id;
  std::string name;
  LayerRange loaded;       // layers held already; empty if unknown
  std::string failure;     // error of loading its last assignment, or ""
  absl::Duration out_for;  // remaining time for which plans exclude it
};

struct ClusterView {
  std::vector<WorkerView> workers;  // of the pipeline, without those to go
  int32_t registered = 0;           // in the whole cluster
  int32_t min_workers = 1;
  int32_t num_layers = 0;
  int32_t plan_stages = 0;  // of the plan that loads or runs; 0: there is none
  bool plan_withdrawn = false;  // a worker of that plan is to go
  absl::Duration since_change;  // since a worker last came or went
  absl::Duration settle_time;
  // The time from a failed plan until a new one may begin.
  absl::Duration back_off;
  std::string last_failure;  // of that plan, for people
  // Whether who failed it sits out, so that there is nothing to wait for as
  // long as the others are enough.
  bool culprit_known = false;
  bool testing_links = false;  // a first plan waits for the tests
  // Whether the first of two workers is known not to reach the second; null:
  // there are no such two.
  std::function<bool(WorkerId, WorkerId)> broken;
};

struct StageAssignment {
  WorkerId worker;
  LayerRange layers;
  friend bool operator==(const StageAssignment&,
                         const StageAssignment&) = default;
};

struct PlanDecision {
  enum class Action {
    kKeep,  // the present plan goes on
    kWait,  // no plan is possible now; `detail` says why
    kPlan,  // a new plan: `stages`, in order
  };
  Action action = Action::kWait;
  std::string detail;
  std::vector<StageAssignment> stages;
  // Of kWait: there are workers enough, but their links don't work.
  bool unlinked = false;
};

// Rules:
// * Fewer than min_workers: wait.
// * Workers that failed to load their share, or are left out, sit out while the
//   others are min_workers or more. When they are needed, they are tried again,
//   after the back-off: all that failed to load, as shares get smaller, then as
//   many of those left out as are needed, the shortest remaining time first.
// * As many stages as workers that take part, but no more than layers. A plan
//   under way is given up only for one with more stages, or for one without a
//   worker that is to go.
// * The order of stages uses no link that is known to be broken; workers for
//   which there is no place in the longest such order sit out. If it has fewer
//   than min_workers, those left out may be in it, too.
// * Membership must have been stable for settle_time.
// * A worker gets the stage whose layers it holds most of already; without
//   that, stages go by name, so that the same workers get the same layers
//   after the coordinator restarts.
PlanDecision DecidePlan(const ClusterView& view);

}  // namespace sluice
