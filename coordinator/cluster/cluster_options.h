#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "common/host/logging.h"
#include "common/policy.h"
#include "common/threads/clock.h"
#include "coordinator/cluster/model_identity.h"
#include "scheduler/plan/plan.h"

namespace sluice {

// Time limits for workers.
struct WorkerTimeouts {
  absl::Duration heartbeat_interval = absl::Seconds(1);
  absl::Duration heartbeat_timeout = absl::Seconds(10);
  // A worker without progress for this long, while it has work, is broken,
  // unless its work took nearly as long before (see Pace).
  absl::Duration stall_timeout = absl::Seconds(60);
  // A new worker waits this long for others before the plan changes.
  absl::Duration settle_time = absl::Milliseconds(200);
  // The first search for a plan waits this long for workers to measure their
  // links to each other; 0: they are not asked to.
  absl::Duration max_link_time;
  // Workers may take this long to test whether links can be opened.
  absl::Duration max_reach_time = absl::Seconds(60);
  // The wait before the plan after a failed one; it doubles up to a minute.
  absl::Duration first_back_off = absl::Milliseconds(500);
  // A worker that a plan failed for is left out this long; the time doubles up
  // to the maximum.
  absl::Duration first_left_out = absl::Seconds(10);
  absl::Duration max_left_out = absl::Minutes(10);
};

// The options of a Membership and its parts.
struct ClusterOptions {
  WorkerTimeouts timeouts;
  int32_t min_workers = 1;
  int32_t num_layers = 0;
  int32_t num_blocks = 0;     // the minimum; never fewer than stages
  int32_t max_model_len = 0;  // positions per sequence
  // Each worker's policy; with a plan of the planner's or the user's, only for
  // the settings that the plan leaves open.
  Policy policy;
  // Plans are made for the jobs that wait, from the workers' profiles, if all
  // have one (see PlanTask).
  bool plan_jobs = false;
  // The user's plan: stages go to the workers that it names, or by order.
  std::optional<Plan> fixed_plan;
  std::string model_fingerprint;  // "": the first worker's counts
  ModelIdentity::Options model;   // which content of the files counts
  // Link addresses with names are looked up when a worker registers.
  bool look_up_names = false;
  LogLevel failure_level = LogLevel::kWarning;  // as in Coordinator::Options
  const Clock* clock = nullptr;
};

}  // namespace sluice
