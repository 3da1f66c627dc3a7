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

// How long workers are waited for.
struct WorkerTimeouts {
  absl::Duration heartbeat_interval = absl::Seconds(1);
  absl::Duration heartbeat_timeout = absl::Seconds(10);
  // A worker that gets nothing done for so long, while it has work, is broken,
  // unless its work took nearly as long before (see Pace).
  absl::Duration stall_timeout = absl::Seconds(60);
  // A new worker waits so long for others before the plan changes.
  absl::Duration settle_time = absl::Milliseconds(200);
  // How long the first search for a plan waits for workers that measure their
  // links to each other; 0: they are not asked to.
  absl::Duration max_link_time;
  // How long workers may take to say whether links can be opened.
  absl::Duration max_reach_time = absl::Seconds(60);
  // Wait before the plan that follows a failed one; doubles up to a minute.
  absl::Duration first_back_off = absl::Milliseconds(500);
  // For how long a worker is left out that a plan failed for; doubles up to the
  // maximum.
  absl::Duration first_left_out = absl::Seconds(10);
  absl::Duration max_left_out = absl::Minutes(10);
};

// What a Membership and its parts are told.
struct ClusterOptions {
  WorkerTimeouts timeouts;
  int32_t min_workers = 1;
  int32_t num_layers = 0;
  int32_t num_blocks = 0;     // at least; never fewer than stages
  int32_t max_model_len = 0;  // positions per sequence
  // Of each worker. With a plan of the planner's or the user's: what that
  // leaves open.
  Policy policy;
  // Plans are made for the jobs that wait, from the workers' profiles, if all
  // have one (see PlanTask).
  bool plan_jobs = false;
  // The user's own: stages go to the workers that it names, or by order.
  std::optional<Plan> fixed_plan;
  std::string model_fingerprint;  // "": that of the first worker counts
  ModelIdentity::Options model;   // which content of its files counts
  // Link addresses with names are looked up when a worker registers.
  bool look_up_names = false;
  LogLevel failure_level = LogLevel::kWarning;  // as in Coordinator::Options
  const Clock* clock = nullptr;
};

}  // namespace sluice
