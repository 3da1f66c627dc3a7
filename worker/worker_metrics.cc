#include "worker/worker_metrics.h"

#include <iterator>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/metrics/metric_buckets.h"

namespace sluice {
WorkerMetrics::WorkerMetrics(MetricsRegistry* metrics, const std::string& name)
    : registry(metrics), worker(name) {
  const auto counter = [&](const char* series, const char* help,
                           MetricLabels labels = {}) {
    labels["worker"] = name;
    return metrics->GetCounter(series, help, labels);
  };
  const auto gauge = [&](const char* series, const char* help,
                         MetricLabels labels = {}) {
    labels["worker"] = name;
    return metrics->GetGauge(series, help, labels);
  };
  const auto link_bytes = [&](const char* direction) {
    return counter("sluice_link_bytes_total", "Bytes of activations over links",
                   {{"direction", direction}});
  };
  link_bytes_sent = link_bytes("sent");
  link_bytes_received = link_bytes("received");
  steps = counter("sluice_worker_steps_total", "Steps computed");
  const auto tokens = [&](const char* phase) {
    return counter("sluice_worker_tokens_total",
                   "New tokens computed by this worker's stage",
                   {{"phase", phase}});
  };
  prefill_tokens = tokens("prefill");
  decode_tokens = tokens("decode");
  kv_cache_usage = gauge("sluice_kv_cache_usage_perc",
                         "Share of the KV pages in use, 0 to 1.");
  weight_bytes = gauge("sluice_weight_bytes", "Bytes of weights loaded");
  step_seconds =
      metrics->GetHistogram("sluice_stage_step_seconds",
                            "Time to compute a step on this worker's stage",
                            StepSecondsBuckets(), {{"worker", name}});
  const std::pair<const char*, double SweepStats::*> activities[] = {
      {"projection", &SweepStats::projection_seconds},
      {"attention", &SweepStats::attention_seconds},
      {"dequantize", &SweepStats::expand_seconds},
      {"head", &SweepStats::head_seconds},
      {"stall_weights", &SweepStats::weight_stall_seconds},
      {"stall_kv", &SweepStats::kv_stall_seconds},
      {"stall_activations", &SweepStats::activation_stall_seconds},
      {"stall_attention", &SweepStats::attention_stall_seconds}};
  for (const auto& [activity, seconds] : activities) {
    sweep.push_back({seconds, nullptr,
                     counter("sluice_runtime_seconds_total",
                             "Seconds of the computing thread, by activity",
                             {{"activity", activity}})});
  }
  const std::tuple<const char*, double SweepStats::*, uint64_t SweepStats::*>
      transfers[] = {{"disk_read", &SweepStats::disk_read_seconds,
                      &SweepStats::disk_read_bytes},
                     {"disk_write", &SweepStats::disk_write_seconds,
                      &SweepStats::disk_write_bytes},
                     {"h2d", &SweepStats::h2d_seconds, &SweepStats::h2d_bytes},
                     {"d2h", &SweepStats::d2h_seconds, &SweepStats::d2h_bytes}};
  for (const auto& [name, seconds, bytes] : transfers) {
    sweep.push_back({seconds, nullptr,
                     counter("sluice_tier_busy_seconds_total",
                             "Seconds in which data moved", {{"wire", name}})});
    sweep.push_back({nullptr, bytes,
                     counter("sluice_tier_bytes_total",
                             "Bytes moved between tiers", {{"wire", name}})});
  }
  const std::tuple<const char*, const char*, uint64_t SweepStats::*> kinds[] = {
      {"weights", "read", &SweepStats::weight_read_bytes},
      {"kv", "read", &SweepStats::kv_read_bytes},
      {"kv", "write", &SweepStats::kv_write_bytes},
      {"activations", "read", &SweepStats::activation_read_bytes},
      {"activations", "write", &SweepStats::activation_write_bytes}};
  for (const auto& [kind, direction, bytes] : kinds) {
    sweep.push_back(
        {nullptr, bytes,
         counter("sluice_disk_bytes_total", "Bytes the disk carried for sweeps",
                 {{"direction", direction}, {"kind", kind}})});
  }
  sweep.push_back({&SweepStats::host_attention_seconds, nullptr,
                   counter("sluice_host_attention_seconds_total",
                           "Seconds in which the host attended for a device")});
  const char* const tiers[kNumTiers] = {"device", "host", "disk"};
  for (size_t i = 0; i < std::size(tiers); ++i) {
    const MetricLabels tier = {{"tier", tiers[i]}};
    const auto placed = [&](const char* kind) {
      return gauge("sluice_placement_bytes",
                   "Bytes of the stage's data on each tier",
                   {{"kind", kind}, {"tier", tiers[i]}});
    };
    weights_on[i] = placed("weights");
    kv_on[i] = placed("kv");
    activations_on[i] = placed("activations");
    memory_budget[i] = gauge(
        "sluice_memory_budget_bytes",
        "The tier's budget: --device-memory, --host-memory or --disk-space.",
        tier);
    memory_used[i] =
        gauge("sluice_memory_used_bytes",
              "Bytes of the tier's budget that are set aside: memory for KV "
              "cache is in use only as sequences need it.",
              tier);
    memory_peak[i] = gauge("sluice_memory_peak_bytes",
                           "Most bytes charged to the tier's budget", tier);
  }
}

WorkerMetrics::StageSeconds WorkerMetrics::ForStage(StageId stage) const {
  const MetricLabels labels = {{"stage", absl::StrCat(stage.value())},
                               {"worker", worker}};
  return {
      registry->GetCounter("sluice_stage_busy_seconds_total",
                           "Seconds spent computing", labels),
      registry->GetCounter(
          "sluice_stage_waiting_seconds_total",
          "Seconds in which sequences were in flight, but not here", labels),
      registry->GetCounter("sluice_stage_idle_seconds_total",
                           "Seconds without a sequence in flight", labels),
  };
}

void WorkerMetrics::CountRuntime(const RuntimeReport& report,
                                 const SweepStats& since) const {
  for (const SweepCounter& c : sweep) {
    const double amount = c.seconds != nullptr
                              ? since.*c.seconds
                              : static_cast<double>(since.*c.bytes);
    if (amount > 0) c.counter->Add(amount);
  }
  const auto set = [](Gauge* const gauges[kNumTiers], uint64_t device,
                      uint64_t host, uint64_t disk) {
    gauges[0]->Set(static_cast<double>(device));
    gauges[1]->Set(static_cast<double>(host));
    gauges[2]->Set(static_cast<double>(disk));
  };
  const RealisedPlacement& p = report.placement;
  set(weights_on, p.weight_device_bytes, p.weight_host_bytes,
      p.weight_bytes - p.weight_host_bytes - p.weight_device_bytes);
  set(kv_on, p.kv_device_bytes, p.kv_host_bytes,
      p.kv_bytes - p.kv_host_bytes - p.kv_device_bytes);
  set(activations_on, p.activation_device_bytes, p.activation_host_bytes,
      p.activation_bytes - p.activation_host_bytes - p.activation_device_bytes);
  set(memory_peak, report.device_peak_bytes, report.host_peak_bytes,
      report.disk_peak_bytes);
}

void WorkerMetrics::SetBudgets(const MemoryBudget* device,
                               const MemoryBudget* host,
                               const MemoryBudget* disk) const {
  const MemoryBudget* const budgets[kNumTiers] = {device, host, disk};
  for (size_t i = 0; i < kNumTiers; ++i) {
    if (budgets[i] == nullptr) continue;
    memory_budget[i]->Set(static_cast<double>(budgets[i]->limit_bytes()));
    memory_used[i]->Set(static_cast<double>(budgets[i]->used_bytes()));
  }
}

void WorkerMetrics::CountStep(const StepPlan& plan, double seconds) const {
  steps->Increment();
  step_seconds->Observe(seconds);
  double prefill = 0;
  double decode = 0;
  for (const MicroBatch& batch : plan.micro_batches) {
    for (const Segment& segment : batch.segments) {
      const bool is_decode = segment.num_tokens == 1 && segment.start > 0;
      (is_decode ? decode : prefill) += segment.num_tokens;
    }
  }
  if (prefill > 0) prefill_tokens->Add(prefill);
  if (decode > 0) decode_tokens->Add(decode);
}

}  // namespace sluice
