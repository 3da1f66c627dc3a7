#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "common/metrics/metrics.h"
#include "common/step_plan.h"
#include "common/types.h"
#include "runtime/memory/memory_budget.h"
#include "worker/runtime_report.h"

namespace sluice {

// What a worker without a copy of the model counts; null: it is not counted.
struct FetchCounters {
  Counter* from_coordinator = nullptr;  // bytes written
  Counter* from_peers = nullptr;
  Counter* refused_pieces = nullptr;
};

// A worker's metrics. Thread-safe.
struct WorkerMetrics {
  // `registry` must outlive this struct.
  WorkerMetrics(MetricsRegistry* registry, const std::string& worker);

  // The counters of time spent, labeled with the stage.
  struct StageSeconds {
    Counter* busy;
    Counter* waiting;
    Counter* idle;
  };
  StageSeconds ForStage(StageId stage) const;

  // Publishes budgets and their use. Null: there is no such tier.
  void SetBudgets(const MemoryBudget* device, const MemoryBudget* host,
                  const MemoryBudget* disk) const;

  // Counts a computed step and its tokens. A segment of one token behind
  // others is decode, the rest prefill.
  void CountStep(const StepPlan& plan, double seconds) const;

  // Adds `since`, the growth of report.stats, to the counters.
  void CountRuntime(const RuntimeReport& report, const SweepStats& since) const;

  MetricsRegistry* const registry;
  const std::string worker;
  Counter* link_bytes_sent;
  Counter* link_bytes_received;
  FetchCounters fetched;
  Counter* weights_served;
  Counter* steps;
  Counter* prefill_tokens;
  Counter* decode_tokens;
  Gauge* kv_cache_usage;  // 0..1
  Gauge* weight_bytes;
  Histogram* step_seconds;

  // A runtime counter for seconds or bytes of SweepStats.
  using SweepField = std::variant<double SweepStats::*, uint64_t SweepStats::*>;
  struct SweepCounter {
    SweepField field;
    Counter* counter;
  };
  std::vector<SweepCounter> sweep;
  Gauge* weights_on[kNumTiers];  // by Tier
  Gauge* kv_on[kNumTiers];
  Gauge* activations_on[kNumTiers];
  Gauge* memory_budget[kNumTiers];
  Gauge* memory_used[kNumTiers];
  Gauge* memory_peak[kNumTiers];
};

}  // namespace sluice
