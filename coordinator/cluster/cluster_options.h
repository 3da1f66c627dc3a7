#pragma once

#include <cstdint>
#include <string>
#include <vector>

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
  // The pipelines that the workers form: so many, or 0, as many as the planner
  // finds best; without plans of the planner's, 0 is 1.
  int32_t replicas = 1;
  int32_t num_layers = 0;
  // The minimum of blocks in flight; never fewer than stages. 0: one more than
  // stages where weights of `layer_bytes` a layer stay in memory, so that the
  // last stage works while a step is on its way back.
  int32_t num_blocks = 0;
  double layer_bytes = 0;     // 0: not known
  int32_t max_model_len = 0;  // positions per sequence
  // Each worker's policy; with a plan of the planner's or the user's, only for
  // the settings that the plan leaves open.
  Policy policy;
  // Plans are made for the jobs that wait, from the workers' profiles, if all
  // have one (see PlanTask).
  bool plan_jobs = false;
  // The user's plan of each pipeline, as many as replicas, or none: stages go
  // to the workers that they name, or by order.
  std::vector<Plan> fixed_plans;
  std::string model_fingerprint;  // "": the first worker's counts
  ModelIdentity::Options model;   // which content of the files counts
  std::string model_config;       // config.json, for workers that fetch it
  // Workers test the links to each other before there is any plan.
  bool test_links = false;
  // Link addresses with names are looked up when a worker registers.
  bool look_up_names = false;
  LogLevel failure_level = LogLevel::kWarning;  // as in Coordinator::Options
  const Clock* clock = nullptr;
};

}  // namespace sluice
