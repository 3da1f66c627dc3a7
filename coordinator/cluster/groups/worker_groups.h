#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "coordinator/cluster/worker_stream.h"

// Decides which workers form a pipeline together. Pure: a snapshot in, a
// decision out.

namespace sluice {

// A worker that plans may use.
struct GroupedWorker {
  WorkerId id;
  std::string name;
  int pipeline = -1;  // its present one; -1: none
  bool able = true;   // plans need not do without it
  int former = -1;    // the one that it was in before it was lost; -1: none
};

struct GroupView {
  // A pipeline, which may have lost all its workers.
  struct Group {
    // Of the present layout; no worker joins one of an earlier layout.
    bool laid_out = true;
    int32_t least = 1;  // it does no work with fewer workers
  };
  std::vector<GroupedWorker> workers;
  std::vector<Group> pipelines;
  int32_t registered = 0;  // workers of any kind
  int32_t min_workers = 1;
  int32_t replicas = 1;
  bool searched = false;  // the planner says who forms pipelines
  // The user's: the names that each pipeline's plan has, one for each worker
  // that it needs, or "". Empty, or one for each pipeline.
  std::vector<std::vector<std::string>> fixed;
  absl::Duration since_change;  // since a worker last came or went
  absl::Duration settle_time;
};

struct GroupDecision {
  enum class Action {
    kKeep,    // all are where they belong
    kWait,    // no pipelines are possible now; `detail` says why
    kJoin,    // `joins`: who joins which of the pipelines there are
    kGroup,   // new pipelines: `groups`
    kSearch,  // the planner is to be asked
  };
  struct Join {
    WorkerId worker;
    size_t pipeline = 0;
  };
  Action action = Action::kWait;
  std::string detail;
  std::vector<Join> joins;
  std::vector<std::vector<WorkerId>> groups;
  // With kSearch: no pipeline does work, and these workers could.
  bool none_works = false;
};

// Rules; those with (*) only where the planner does not say who forms
// pipelines:
// * One pipeline has everybody, at once.
// * As long as there are no pipelines: wait until min_workers are there, and
//   one for each pipeline, and have been stable for settle_time.
// * Then they are dealt out by name, equally many to each pipeline, but for
//   one: names that follow each other are often of one machine, or close (*).
//   With plans of the user's each gets the workers that its plan names, and
//   others by name as far as it needs more.
// * Later: a worker that comes back goes to its former pipeline; another to the
//   smallest one, the first of these (*). Nobody else is touched.
// * When no pipeline has its least of workers that are able to take part, but
//   min_workers of them are there, all are grouped anew.
// * With fewer than min_workers, groups stay: the planner is not asked, whose
//   groups could do no work.
GroupDecision DecideGroups(const GroupView& view);

// The workers without which a pipeline of `size`, one of `replicas`, makes no
// plan: its part of min_workers, as long as it had so many itself.
int32_t MinWorkersOf(int32_t min_workers, int32_t replicas, int32_t size);

}  // namespace sluice
