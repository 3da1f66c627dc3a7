#include "coordinator/jobs/job_metrics.h"

#include <vector>

#include "coordinator/job_manager.h"

namespace sluice {
namespace {

const std::vector<double>& TokenBuckets() {
  static const std::vector<double>* const kBuckets = new std::vector<double>{
      1,   2,    5,    10,   20,    50,    100,   200,
      500, 1000, 2000, 5000, 10000, 20000, 50000, 100000};
  return *kBuckets;
}

}  // namespace

JobMetrics::JobMetrics(MetricsRegistry* registry)
    : registry_(registry),
      waiting_(registry->GetGauge(
          "sluice_num_requests_queued",
          "Requests of running jobs that the dispatcher has not got yet.")),
      prompt_tokens_(registry->GetCounter(
          "sluice_prompt_tokens_total",
          "Prompt tokens of requests that ended with an answer.")),
      generation_tokens_(registry->GetCounter(
          "sluice_generation_tokens_total",
          "Generated tokens of requests that ended with an answer.")),
      request_prompt_tokens_(registry->GetHistogram(
          "sluice_request_prompt_tokens",
          "Prompt tokens of each answered request.", TokenBuckets())),
      request_generation_tokens_(registry->GetHistogram(
          "sluice_request_generation_tokens",
          "Generated tokens of each answered request.", TokenBuckets())),
      journal_fsync_seconds_(registry->GetHistogram(
          "sluice_journal_fsync_seconds",
          "Time to make one transaction of the job store durable.",
          {0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1,
           0.2, 0.5, 1, 2, 5, 10})) {}

void JobMetrics::CountResult(const StoredResult& result) {
  if (result.kind != ResultKind::kAnswer) {
    CountErrors(result.outcome, 1);
    return;
  }
  registry_
      ->GetCounter("sluice_request_success_total",
                   "Requests that ended with an answer, by why it ended.",
                   {{"finished_reason", result.outcome}})
      ->Increment();
  prompt_tokens_->Add(static_cast<double>(result.prompt_tokens));
  generation_tokens_->Add(static_cast<double>(result.generation_tokens));
  request_prompt_tokens_->Observe(static_cast<double>(result.prompt_tokens));
  request_generation_tokens_->Observe(
      static_cast<double>(result.generation_tokens));
}

void JobMetrics::CountErrors(const std::string& code, int64_t count) {
  registry_
      ->GetCounter("sluice_request_errors_total",
                   "Requests that ended with an error, by its code.",
                   {{"code", code}})
      ->Add(static_cast<double>(count));
}

void JobMetrics::SetWaiting(int64_t requests) {
  waiting_->Set(static_cast<double>(requests));
}

void JobMetrics::SetJobs(v1::JobState state, int64_t jobs) {
  registry_
      ->GetGauge("sluice_jobs", "Jobs kept, by state.",
                 {{"state", JobStateName(state)}})
      ->Set(static_cast<double>(jobs));
}

}  // namespace sluice
