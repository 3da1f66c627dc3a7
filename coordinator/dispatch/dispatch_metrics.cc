#include "coordinator/dispatch/dispatch_metrics.h"

#include <algorithm>
#include <array>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/strip.h"
#include "common/metrics/metric_buckets.h"

namespace sluice {
namespace {

// A worker that is gone is exported as down for this time.
constexpr absl::Duration kRememberGone = absl::Hours(1);
// The limit of exported workers that are gone.
constexpr size_t kMaxGone = 256;

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
  for (int i = v1::WORKER_STATE_SPARE; i < v1::WorkerState_ARRAYSIZE; ++i) {
    const std::string& name = v1::WorkerState_Name(v1::WorkerState(i));
    workers_[i] = registry->GetGauge(
        "sluice_workers", "Registered workers by state.",
        {{"state",
          absl::AsciiStrToLower(absl::StripPrefix(name, "WORKER_STATE_"))}});
  }
  for (const char* reason : {"link", "load", "lost", "stall", "step"}) {
    PlanFailures(reason)->Add(0);
  }
  for (const char* how : {"left", "lost"}) Gone(how)->Add(0);
  steps_ = registry->GetCounter("sluice_steps_total", "Steps completed.");
  prompt_tokens_ = registry->GetCounter(
      "sluice_prompt_tokens_total",
      "Tokens of prompts, as they are computed for the first time.");
  prefix_queries_ = registry->GetCounter(
      "sluice_prefix_cache_queries_total",
      "Tokens of prompts whose requests were admitted for the first time.");
  prefix_hits_ = registry->GetCounter(
      "sluice_prefix_cache_hits_total",
      "Of these, the tokens that another request had computed.");
  generation_tokens_ = registry->GetCounter(
      "sluice_generation_tokens_total",
      "Tokens generated, as they are sampled; replayed ones only once.");
  replays_ = registry->GetCounter(
      "sluice_replays_total",
      "Requests that had to be prefilled again after a failure or a new plan.");
  step_seconds_ = registry->GetHistogram(
      "sluice_step_seconds",
      "Time from sending a block's step to its result, all stages included.",
      StepSecondsBuckets());
  queue_seconds_ = registry->GetHistogram(
      "sluice_request_queue_time_seconds",
      "Time from the acceptance of a request's job to its admission to a "
      "block.",
      RequestSecondsBuckets());
  latency_seconds_ = registry->GetHistogram(
      "sluice_e2e_request_latency_seconds",
      "Time from the acceptance of a request's job to the request's end.",
      RequestSecondsBuckets());
}

Counter* DispatchMetrics::PlanFailures(const std::string& reason) {
  return registry_->GetCounter(
      "sluice_plan_failures_total",
      "Plans that ended, or never began, because a link could not be opened or "
      "broke (link), a stage could not be loaded (load), a worker was lost "
      "(lost) or stood still (stall), or a step failed (step).",
      {{"reason", reason}});
}

Counter* DispatchMetrics::Gone(const char* how) {
  return registry_->GetCounter(
      "sluice_workers_gone_total",
      "Workers that are attached no longer: stopped on purpose (left) or not "
      "(lost).",
      {{"how", how}});
}

void DispatchMetrics::Observe(const BlockDriver::Stats& stats) {
  if (stats.steps > 0) steps_->Add(static_cast<double>(stats.steps));
  if (stats.prompt_tokens > 0) {
    prompt_tokens_->Add(static_cast<double>(stats.prompt_tokens));
  }
  if (stats.admitted_tokens > 0) {
    prefix_queries_->Add(static_cast<double>(stats.admitted_tokens));
    prefix_hits_->Add(static_cast<double>(stats.cached_tokens));
  }
  if (stats.tokens > 0) {
    generation_tokens_->Add(static_cast<double>(stats.tokens));
  }
  if (stats.replays > 0) replays_->Add(static_cast<double>(stats.replays));
  for (double s : stats.step_seconds) step_seconds_->Observe(s);
  for (double s : stats.queue_seconds) queue_seconds_->Observe(s);
  for (double s : stats.latency_seconds) latency_seconds_->Observe(s);
}

void DispatchMetrics::Set(const v1::ClusterState& state,
                          int64_t blocks_in_flight, int64_t unwritten_results,
                          absl::Duration now) {
  running_->Set(static_cast<double>(state.running()));
  waiting_->Set(static_cast<double>(state.waiting()));
  epoch_->Set(static_cast<double>(state.epoch()));
  blocks_in_flight_->Set(static_cast<double>(blocks_in_flight));
  unwritten_results_->Set(static_cast<double>(unwritten_results));
  for (const v1::PlanFailures& failures : state.plan_failures()) {
    int64_t& counted = plan_failures_[failures.reason()];
    if (failures.count() > counted) {
      PlanFailures(failures.reason())
          ->Add(static_cast<double>(failures.count() - counted));
    }
    counted = failures.count();
  }
  std::array<int, v1::WorkerState_ARRAYSIZE> counts{};
  for (const v1::WorkerInfo& worker : state.workers()) {
    ++counts[worker.state()];
  }
  for (int i = 0; i < v1::WorkerState_ARRAYSIZE; ++i) {
    if (workers_[i] != nullptr) workers_[i]->Set(counts[i]);
  }
  SetWorkers(state, now);
  SetPlan(state);
  SetPipelines(state);
}

void DispatchMetrics::SetPipelines(const v1::ClusterState& state) {
  constexpr char kEpoch[] = "sluice_pipeline_epoch";
  constexpr char kRunning[] = "sluice_pipeline_requests_running";
  constexpr char kInFlight[] = "sluice_pipeline_blocks_in_flight";
  constexpr char kPredicted[] = "sluice_pipeline_predicted_tokens_per_second";
  std::set<int32_t> present;
  for (const v1::PipelineInfo& pipeline : state.pipelines()) {
    present.insert(pipeline.pipeline());
    const MetricLabels labels = {
        {"pipeline", std::to_string(pipeline.pipeline())}};
    registry_
        ->GetGauge(kEpoch,
                   "Number of the pipeline's newest plan; 0 before the first.",
                   labels)
        ->Set(static_cast<double>(pipeline.epoch()));
    registry_
        ->GetGauge(kRunning, "Requests being generated by the pipeline.",
                   labels)
        ->Set(static_cast<double>(pipeline.running()));
    registry_
        ->GetGauge(kInFlight, "Blocks of the pipeline whose step is under way.",
                   labels)
        ->Set(static_cast<double>(pipeline.blocks_in_flight()));
    registry_
        ->GetGauge(kPredicted,
                   "Generated tokens a second that the pipeline's plan "
                   "predicts; 0 without a plan of the planner's.",
                   labels)
        ->Set(pipeline.predicted_tokens_per_second());
    int64_t& counted = pipelines_[pipeline.pipeline()];
    Counter* const tokens = registry_->GetCounter(
        "sluice_pipeline_generation_tokens_total",
        "Tokens generated by the pipeline, as they are sampled.", labels);
    const int64_t more = pipeline.generated_tokens() - counted;
    if (more > 0) tokens->Add(static_cast<double>(more));
    counted = pipeline.generated_tokens();
  }
  for (const auto& [number, tokens] : pipelines_) {
    if (present.contains(number)) continue;
    const MetricLabels labels = {{"pipeline", std::to_string(number)}};
    for (const char* name : {kEpoch, kRunning, kInFlight, kPredicted}) {
      registry_->Remove(name, labels);
    }
  }
}

void DispatchMetrics::SetWorkers(const v1::ClusterState& state,
                                 absl::Duration now) {
  std::set<std::string> left;
  for (const v1::AbsentWorker& absent : state.absent()) {
    if (absent.kind() == v1::AbsentWorker::KIND_LEFT) {
      left.insert(absent.name());
    }
  }
  for (const v1::WorkerInfo& worker : state.workers()) {
    seen_[worker.name()] = {now, true};
    Up(worker.name())->Set(1);
    HeartbeatAge(worker.name())->Set(worker.seconds_since_heartbeat());
  }
  for (auto it = seen_.begin(); it != seen_.end();) {
    auto& [name, seen] = *it;
    if (seen.at == now) {
      ++it;
      continue;
    }
    const MetricLabels labels = {{"worker", name}};
    registry_->Remove("sluice_worker_heartbeat_age_seconds", labels);
    const bool on_purpose = left.contains(name);
    if (std::exchange(seen.up, false)) {
      Gone(on_purpose ? "left" : "lost")->Increment();
    }
    if (!on_purpose && now - seen.at < kRememberGone) {
      Up(name)->Set(0);
      ++it;
    } else {
      registry_->Remove("sluice_worker_up", labels);
      it = seen_.erase(it);
    }
  }
  // Workers may restart again and again, each time by another name.
  while (seen_.size() > static_cast<size_t>(state.workers_size()) + kMaxGone) {
    const auto oldest = std::min_element(
        seen_.begin(), seen_.end(),
        [](const auto& a, const auto& b) { return a.second.at < b.second.at; });
    registry_->Remove("sluice_worker_up", {{"worker", oldest->first}});
    seen_.erase(oldest);
  }
}

Gauge* DispatchMetrics::Up(const std::string& worker) {
  return registry_->GetGauge(
      "sluice_worker_up",
      "1 for a worker that is attached, 0 for one that was lost within an "
      "hour.",
      {{"worker", worker}});
}

Gauge* DispatchMetrics::HeartbeatAge(const std::string& worker) {
  return registry_->GetGauge("sluice_worker_heartbeat_age_seconds",
                             "Time since the worker was last heard of.",
                             {{"worker", worker}});
}

void DispatchMetrics::SetPlan(const v1::ClusterState& state) {
  constexpr char kPredicted[] = "sluice_plan_predicted_seconds";
  constexpr char kMeasured[] = "sluice_plan_measured_seconds";
  std::set<MetricLabels> present;
  for (const v1::WorkerInfo& worker : state.workers()) {
    for (const v1::ResourceUse& use : worker.resources()) {
      const MetricLabels labels = {{"stage", std::to_string(worker.stage())},
                                   {"worker", worker.name()},
                                   {"resource", use.resource()}};
      registry_
          ->GetGauge(kPredicted,
                     "Busy seconds that the plan predicted for what was "
                     "computed since it began.",
                     labels)
          ->Set(use.predicted_seconds());
      registry_
          ->GetGauge(kMeasured, "Busy seconds since the plan began.", labels)
          ->Set(use.measured_seconds());
      present.insert(labels);
    }
  }
  for (const MetricLabels& labels : std::exchange(planned_, present)) {
    if (present.contains(labels)) continue;
    registry_->Remove(kPredicted, labels);
    registry_->Remove(kMeasured, labels);
  }
}

}  // namespace sluice
