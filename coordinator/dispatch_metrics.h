#pragma once

#include "common/metrics.h"
#include "coordinator/block_driver.h"
#include "sluice/v1/cluster.pb.h"

namespace sluice {

// The dispatcher's metrics. Thread-compatible.
class DispatchMetrics {
 public:
  explicit DispatchMetrics(MetricsRegistry* registry);

  void Observe(const BlockDriver::Stats& stats);
  // From running, waiting, epoch and workers of `state`.
  void Set(const v1::ClusterState& state, int64_t blocks_in_flight,
           int64_t unwritten_results);

 private:
  MetricsRegistry* const registry_;
  Gauge* running_;
  Gauge* waiting_;
  Gauge* epoch_;
  Gauge* blocks_in_flight_;
  Gauge* unwritten_results_;
  Gauge* workers_[v1::WorkerState_ARRAYSIZE];
  Counter* steps_;
  Counter* tokens_;
  Counter* replays_;
  Histogram* step_seconds_;
  Histogram* queue_seconds_;
  Histogram* latency_seconds_;
};

}  // namespace sluice
