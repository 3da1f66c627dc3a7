#include "worker/worker_metrics.h"

#include "absl/strings/str_cat.h"

namespace sluice {
namespace {

Counter* LinkBytes(MetricsRegistry* registry, const std::string& worker,
                   const std::string& direction) {
  return registry->GetCounter("sluice_link_bytes_total",
                              "Bytes of activations over links",
                              {{"direction", direction}, {"worker", worker}});
}

Counter* Tokens(MetricsRegistry* registry, const std::string& worker,
                const std::string& phase) {
  return registry->GetCounter("sluice_worker_tokens_total",
                              "New tokens computed by this worker's stage",
                              {{"phase", phase}, {"worker", worker}});
}

}  // namespace

WorkerMetrics::WorkerMetrics(MetricsRegistry* metrics, const std::string& name)
    : registry(metrics),
      worker(name),
      link_bytes_sent(LinkBytes(metrics, name, "sent")),
      link_bytes_received(LinkBytes(metrics, name, "received")),
      steps(metrics->GetCounter("sluice_worker_steps_total", "Steps computed",
                                {{"worker", name}})),
      prefill_tokens(Tokens(metrics, name, "prefill")),
      decode_tokens(Tokens(metrics, name, "decode")),
      kv_cache_usage(metrics->GetGauge("sluice_kv_cache_usage",
                                       "Share of the KV pages that is reserved",
                                       {{"worker", name}})),
      weight_bytes(metrics->GetGauge("sluice_weight_bytes",
                                     "Bytes of weights loaded",
                                     {{"worker", name}})),
      step_seconds(
          metrics->GetHistogram("sluice_step_seconds",
                                "Time to compute a step on this worker's stage",
                                {0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1,
                                 0.2, 0.5, 1, 2, 5, 10, 30, 60},
                                {{"worker", name}})) {}

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
