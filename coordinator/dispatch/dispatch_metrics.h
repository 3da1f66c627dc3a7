#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "absl/time/time.h"
#include "common/metrics/metrics.h"
#include "coordinator/dispatch/block_driver.h"
#include "sluice/v1/cluster.pb.h"

namespace sluice {

// The dispatcher's metrics. Thread-compatible.
class DispatchMetrics {
 public:
  explicit DispatchMetrics(MetricsRegistry* registry);

  void Observe(const BlockDriver::Stats& stats);
  // Sets metrics from running, waiting, epoch, workers, plan_failures and
  // pipelines of `state`. `now` is monotonic.
  void Set(const v1::ClusterState& state, int64_t blocks_in_flight,
           int64_t unwritten_results, absl::Duration now);

 private:
  void SetWorkers(const v1::ClusterState& state, absl::Duration now);
  void SetPlan(const v1::ClusterState& state);
  void SetPipelines(const v1::ClusterState& state);
  Gauge* Up(const std::string& worker);
  Gauge* HeartbeatAge(const std::string& worker);
  Counter* PlanFailures(const std::string& reason);
  Counter* Gone(const char* how);

  MetricsRegistry* const registry_;
  std::map<std::string, int64_t> plan_failures_;  // counted so far
  Gauge* running_;
  Gauge* waiting_;
  Gauge* epoch_;
  Gauge* blocks_in_flight_;
  Gauge* unwritten_results_;
  Gauge* workers_[v1::WorkerState_ARRAYSIZE] = {};
  Counter* steps_;
  Counter* prompt_tokens_;
  Counter* prefix_queries_;
  Counter* prefix_hits_;
  Counter* generation_tokens_;
  Counter* replays_;
  Histogram* step_seconds_;
  Histogram* queue_seconds_;
  Histogram* latency_seconds_;
  struct Seen {
    absl::Duration at;  // when it was last attached
    bool up = true;
  };
  std::map<std::string, Seen> seen_;      // workers that have series
  std::map<int32_t, int64_t> pipelines_;  // shown, with their tokens
  std::set<MetricLabels> planned_;        // series of the present plan
};

}  // namespace sluice
