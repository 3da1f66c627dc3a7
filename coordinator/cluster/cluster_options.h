#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "common/host/logging.h"
#include "common/policy.h"
#include "common/threads/clock.h"
#include "coordinator/cluster/model_identity.h"
#include "coordinator/cluster/worker_timeouts.h"
#include "scheduler/plan/plan.h"

namespace sluice {

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
  std::string model_config;       // config.json, for workers that fetch it
  // Link addresses with names are looked up when a worker registers.
  bool look_up_names = false;
  LogLevel failure_level = LogLevel::kWarning;  // as in Coordinator::Options
  const Clock* clock = nullptr;
};

}  // namespace sluice
