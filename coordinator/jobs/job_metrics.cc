#include "coordinator/jobs/job_metrics.h"

#include <system_error>

#include "common/host/disk_gauge.h"
#include "common/metrics/metric_buckets.h"
#include "coordinator/jobs/job_state.h"

namespace sluice {
namespace {

// The error codes of lines that are no requests, and of requests that failed.
constexpr const char* kErrorCodes[] = {
    "batch_cancelled",   "duplicate_custom_id",
    "empty_line",        "invalid_json",
    "invalid_request",   "invalid_utf8",
    "invalid_row",       "line_too_long",
    "missing_field",     "prompt_too_long",
    "result_too_large",  "unknown_endpoint",
    "unknown_field",     "unknown_model",
    "unsupported",       "failed_precondition",
    "internal",          "invalid_argument",
    "resource_exhausted"};
constexpr const char* kFinishReasons[] = {"stop", "length"};

constexpr char kProcessed[] = "sluice_job_processed_tokens";
constexpr char kExpected[] = "sluice_job_expected_tokens";
constexpr char kRemaining[] = "sluice_job_remaining_seconds";

MetricLabels IdLabel(JobId job) { return {{"id", FormatJobId(job)}}; }

}  // namespace

JobMetrics::JobMetrics(MetricsRegistry* registry)
    : registry_(registry),
      waiting_(registry->GetGauge(
          "sluice_num_requests_queued",
          "Requests of running jobs that the dispatcher has not got yet.")),
      database_bytes_(registry->GetGauge(
          "sluice_state_database_bytes",
          "Size of the database of jobs and results, its log included.")),
      request_prompt_tokens_(registry->GetHistogram(
          "sluice_request_prompt_tokens",
          "Prompt tokens of each answered request.", TokenBuckets())),
      request_generation_tokens_(registry->GetHistogram(
          "sluice_request_generation_tokens",
          "Generated tokens of each answered request.", TokenBuckets())),
      journal_fsync_seconds_(registry->GetHistogram(
          "sluice_journal_fsync_seconds",
          "Time to make one transaction of the job store durable.",
          DurableWriteSecondsBuckets())) {
  // Series exist from the start, so that the first error is an increase, too.
  for (const char* code : kErrorCodes) CountErrors(code, 0);
  for (const char* reason : kFinishReasons) Successes(reason)->Add(0);
}

Counter* JobMetrics::Successes(const std::string& finished_reason) {
  return registry_->GetCounter(
      "sluice_request_success_total",
      "Requests that ended with an answer, by why it ended.",
      {{"finished_reason", finished_reason}});
}

void JobMetrics::CountResult(const StoredResult& result) {
  if (result.kind != ResultKind::kAnswer) {
    CountErrors(result.outcome, 1);
    return;
  }
  Successes(result.outcome)->Increment();
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

void JobMetrics::SetState(const std::filesystem::path& state_dir) {
  uintmax_t bytes = 0;
  for (const char* name : {"sluice.db", "sluice.db-wal"}) {
    std::error_code missing;
    const uintmax_t size =
        std::filesystem::file_size(state_dir / name, missing);
    if (!missing) bytes += size;
  }
  database_bytes_->Set(static_cast<double>(bytes));
  SetDiskFree(registry_, state_dir.string());
}

void JobMetrics::SetJobs(v1::JobState state, int64_t jobs) {
  registry_
      ->GetGauge("sluice_jobs", "Jobs kept, by state.",
                 {{"state", JobStateName(state)}})
      ->Set(static_cast<double>(jobs));
}

void JobMetrics::SetQueued(const std::string& tenant, int64_t requests,
                           int64_t tokens, int64_t bytes) {
  const auto set = [&](const char* name, const char* help, int64_t value) {
    registry_->GetGauge(name, help, {{"tenant", tenant}})
        ->Set(static_cast<double>(value));
  };
  set("sluice_tenant_queued_requests",
      "A tenant's requests without a result, uploads under way included.",
      requests);
  set("sluice_tenant_queued_tokens",
      "Tokens of the prompts of these requests, and the most that they may "
      "generate.",
      tokens);
  set("sluice_tenant_queued_bytes",
      "Input of a tenant's jobs that have not ended.", bytes);
}

void JobMetrics::CountRefused(const std::string& tenant) {
  registry_
      ->GetCounter("sluice_tenant_refused_jobs_total",
                   "Uploads that a tenant's quota refused.",
                   {{"tenant", tenant}})
      ->Increment();
}

void JobMetrics::SetProgress(const std::map<JobId, Progress>& jobs) {
  MutexLock lock(&mu_);
  for (const JobId job : in_progress_) {
    if (!jobs.contains(job)) RemoveSeries(job);
  }
  in_progress_.clear();
  for (const auto& [job, progress] : jobs) {
    in_progress_.insert(job);
    const MetricLabels labels = IdLabel(job);
    const auto set = [&](const char* name, const char* help, auto value) {
      if (value) {
        registry_->GetGauge(name, help, labels)
            ->Set(static_cast<double>(*value));
      } else {
        registry_->Remove(name, labels);
      }
    };
    set(kProcessed,
        "Tokens of a job's prompts computed and of its answers generated, "
        "those of running requests included.",
        std::optional<int64_t>(progress.processed_tokens));
    set(kExpected,
        "Tokens of a job, prompts and answers, that there will be, as it looks "
        "now.",
        progress.expected_tokens);
    set(kRemaining,
        "Time that a job will still take at its pace of the last half minute.",
        progress.seconds_left);
  }
}

void JobMetrics::RemoveProgress(JobId job) {
  MutexLock lock(&mu_);
  if (in_progress_.erase(job) > 0) RemoveSeries(job);
}

void JobMetrics::RemoveSeries(JobId job) {
  for (const char* name : {kProcessed, kExpected, kRemaining}) {
    registry_->Remove(name, IdLabel(job));
  }
}

}  // namespace sluice
