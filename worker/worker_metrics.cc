#include "worker/worker_metrics.h"

#include <iterator>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/metrics/metric_buckets.h"
#include "proto/weights_service.h"

namespace sluice {
namespace {

// The counters of a name, each of a field of a sweep's statistics.
struct SweepFamily {
  const char* name;
  const char* help;
  std::vector<std::pair<MetricLabels, WorkerMetrics::SweepField>> fields;
};

std::vector<SweepFamily> SweepFamilies() {
  using S = SweepStats;
  return {
      {"sluice_runtime_seconds_total",
       "Seconds of the computing thread, by activity",
       {{{{"activity", "projection"}}, &S::projection_seconds},
        {{{"activity", "attention"}}, &S::attention_seconds},
        {{{"activity", "dequantize"}}, &S::dequantize_seconds},
        {{{"activity", "head"}}, &S::head_seconds},
        {{{"activity", "stall_weights"}}, &S::weight_stall_seconds},
        {{{"activity", "stall_kv"}}, &S::kv_stall_seconds},
        {{{"activity", "stall_activations"}}, &S::activation_stall_seconds},
        {{{"activity", "stall_attention"}}, &S::attention_stall_seconds}}},
      {"sluice_tier_busy_seconds_total",
       "Seconds in which data moved",
       {{{{"wire", "disk_read"}}, &S::disk_read_seconds},
        {{{"wire", "disk_write"}}, &S::disk_write_seconds},
        {{{"wire", "h2d"}}, &S::h2d_seconds},
        {{{"wire", "d2h"}}, &S::d2h_seconds}}},
      {"sluice_tier_bytes_total",
       "Bytes moved between tiers",
       {{{{"wire", "disk_read"}}, &S::disk_read_bytes},
        {{{"wire", "disk_write"}}, &S::disk_write_bytes},
        {{{"wire", "h2d"}}, &S::h2d_bytes},
        {{{"wire", "d2h"}}, &S::d2h_bytes}}},
      {"sluice_disk_bytes_total",
       "Bytes the disk carried for sweeps",
       {{{{"direction", "read"}, {"kind", "weights"}}, &S::weight_read_bytes},
        {{{"direction", "read"}, {"kind", "kv"}}, &S::kv_read_bytes},
        {{{"direction", "write"}, {"kind", "kv"}}, &S::kv_write_bytes},
        {{{"direction", "read"}, {"kind", "activations"}},
         &S::activation_read_bytes},
        {{{"direction", "write"}, {"kind", "activations"}},
         &S::activation_write_bytes}}},
      {"sluice_host_attention_seconds_total",
       "Seconds in which the host attended for a device",
       {{{}, &S::host_attention_seconds}}},
  };
}

}  // namespace

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
  const auto fetched_from = [&](const char* source) {
    return counter("sluice_weights_fetched_bytes_total",
                   "Bytes of weight files fetched, and found right",
                   {{"source", source}});
  };
  fetched.from_coordinator = fetched_from("coordinator");
  fetched.from_peers = fetched_from("worker");
  fetched.refused_pieces =
      counter("sluice_weights_refused_pieces_total",
              "Pieces of weight files that came corrupted");
  weights_served = WeightBytesServed(metrics, name);
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
  for (const SweepFamily& family : SweepFamilies()) {
    for (const auto& [labels, field] : family.fields) {
      sweep.push_back({field, counter(family.name, family.help, labels)});
    }
  }
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
    const double amount = std::visit(
        [&](auto field) { return static_cast<double>(since.*field); }, c.field);
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
