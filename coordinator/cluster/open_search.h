#pragma once

#include <cstdint>
#include <vector>

#include "coordinator/cluster/worker_registry.h"
#include "coordinator/planning/job_planner.h"
#include "coordinator/planning/phase_rows.h"

namespace sluice {

// What a pipeline has done since the coordinator began.
struct WorkProgress {
  PhaseRows rows;  // computed
  double rows_in_flight = 0;
  double seconds = 0;       // wall time with steps in flight
  double output_share = 1;  // of their max_tokens that requests generate
  // Positions of running requests, which another plan would compute again.
  double held_rows = 0;
};

// What searches for plans and for groups have in common, from their beginning
// to their answers. Confined to the dispatcher's thread.
struct OpenSearch {
  int64_t ticket = 0;
  std::vector<WorkerId> workers;
  bool taken = false;
  bool new_jobs = false;  // jobs came since the search began
  bool no_work = false;

  // Returns what is asked: the ticket and the workers' profiles. REQUIRES: all
  // workers are registered.
  PlanTask Take(const WorkerRegistry& registry) {
    taken = true;
    PlanTask task;
    task.ticket = ticket;
    task.machines = registry.PlanningProfiles(workers);
    return task;
  }
};

}  // namespace sluice
