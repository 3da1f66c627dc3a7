#include "coordinator/dispatch_metrics.h"

#include <array>
#include <string>
#include <vector>

namespace sluice {
namespace {

std::string StateLabel(int state) {
  switch (state) {
    case v1::WORKER_STATE_SPARE:
      return "spare";
    case v1::WORKER_STATE_LOADING:
      return "loading";
    case v1::WORKER_STATE_READY:
      return "ready";
    case v1::WORKER_STATE_FAILED:
      return "failed";
    case v1::WORKER_STATE_CHECKING:
      return "checking";
    default:
      return "";
  }
}

}  // namespace

DispatchMetrics::DispatchMetrics(MetricsRegistry* registry)
    : registry_(registry) {
  running_ = registry->GetGauge("sluice_num_requests_running",
                                "Requests being generated now.");
  waiting_ = registry->GetGauge(
      "sluice_num_requests_waiting",
      "Requests that the dispatcher holds and that wait for a slot.");
  epoch_ = registry->GetGauge("sluice_plan_epoch",
                              "Number of the newest plan; 0 before the first.");
  blocks_in_flight_ = registry->GetGauge("sluice_blocks_in_flight",
                                         "Blocks whose step is under way.");
  unwritten_results_ = registry->GetGauge(
      "sluice_results_unwritten", "Results that the store has not taken yet.");
  for (int i = 0; i < v1::WorkerState_ARRAYSIZE; ++i) {
    const std::string label = StateLabel(i);
    workers_[i] = label.empty()
                      ? nullptr
                      : registry->GetGauge("sluice_workers",
                                           "Registered workers by state.",
                                           {{"state", label}});
  }
  steps_ = registry->GetCounter("sluice_steps_total", "Steps completed.");
  tokens_ = registry->GetCounter("sluice_sampled_tokens_total",
                                 "Tokens sampled, replayed ones only once.");
  replays_ = registry->GetCounter(
      "sluice_replays_total",
      "Requests that had to be prefilled again after a failure or a new plan.");
  const std::vector<double> step = {0.001, 0.0025, 0.005, 0.01, 0.025,
                                    0.05,  0.1,    0.25,  0.5,  1,
                                    2.5,   5,      10,    30,   60};
  const std::vector<double> request = {
      0.1, 0.3, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 14400};
  step_seconds_ = registry->GetHistogram(
      "sluice_step_seconds",
      "Time from sending a block's step to its result, all stages included.",
      step);
  queue_seconds_ = registry->GetHistogram(
      "sluice_request_queue_time_seconds",
      "Time of a request from being read by the dispatcher to its admission to "
      "a block.",
      request);
  latency_seconds_ = registry->GetHistogram(
      "sluice_e2e_request_latency_seconds",
      "Time of a request from being read by the dispatcher to its end.",
      request);
}

void DispatchMetrics::Observe(const BlockDriver::Stats& stats) {
  if (stats.steps > 0) steps_->Add(static_cast<double>(stats.steps));
  if (stats.tokens > 0) tokens_->Add(static_cast<double>(stats.tokens));
  if (stats.replays > 0) replays_->Add(static_cast<double>(stats.replays));
  for (double s : stats.step_seconds) step_seconds_->Observe(s);
  for (double s : stats.queue_seconds) queue_seconds_->Observe(s);
  for (double s : stats.latency_seconds) latency_seconds_->Observe(s);
}

void DispatchMetrics::Set(const v1::ClusterState& state,
                          int64_t blocks_in_flight, int64_t unwritten_results) {
  running_->Set(static_cast<double>(state.running()));
  waiting_->Set(static_cast<double>(state.waiting()));
  epoch_->Set(static_cast<double>(state.epoch()));
  blocks_in_flight_->Set(static_cast<double>(blocks_in_flight));
  unwritten_results_->Set(static_cast<double>(unwritten_results));
  std::array<int, v1::WorkerState_ARRAYSIZE> counts{};
  for (const v1::WorkerInfo& worker : state.workers()) {
    ++counts[worker.state()];
  }
  for (int i = 0; i < v1::WorkerState_ARRAYSIZE; ++i) {
    if (workers_[i] != nullptr) workers_[i]->Set(counts[i]);
  }
  for (const v1::WorkerInfo& worker : state.workers()) {
    for (const v1::ResourceUse& use : worker.resources()) {
      const auto gauge = [&](const char* name, const char* help) {
        return registry_->GetGauge(name, help,
                                   {{"stage", std::to_string(worker.stage())},
                                    {"resource", use.resource()}});
      };
      gauge("sluice_plan_predicted_seconds",
            "Busy seconds that the plan predicted for what was computed since "
            "it began.")
          ->Set(use.predicted_seconds());
      gauge("sluice_plan_measured_seconds",
            "Busy seconds since the plan began.")
          ->Set(use.measured_seconds());
    }
  }
}

}  // namespace sluice
