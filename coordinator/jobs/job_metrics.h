#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "common/metrics/metrics.h"
#include "common/threads/mutex.h"
#include "common/types.h"
#include "coordinator/store/job_record.h"
#include "sluice/v1/jobs.pb.h"

namespace sluice {

// The jobs' metrics. Thread-safe; the registry must outlive them.
class JobMetrics {
 public:
  explicit JobMetrics(MetricsRegistry* registry);

  // Counts a recorded result.
  void CountResult(const StoredResult& result);
  // Counts lines of a published job that were no requests.
  void CountErrors(const std::string& code, int64_t count);
  void SetWaiting(int64_t requests);
  // Sets the database's size and the free bytes of its file system.
  void SetState(const std::filesystem::path& state_dir);
  void SetJobs(v1::JobState state, int64_t jobs);

  // Sets what a tenant has queued.
  void SetQueued(const std::string& tenant, int64_t requests, int64_t tokens,
                 int64_t bytes);
  // Counts a job of a tenant that its quota refused.
  void CountRefused(const std::string& tenant);

  // How far a job is; nothing for what is not known.
  struct Progress {
    int64_t processed_tokens = 0;
    std::optional<int64_t> expected_tokens;
    std::optional<double> seconds_left;
  };
  // Shows the progress of these jobs and of no others.
  void SetProgress(const std::map<JobId, Progress>& jobs);
  // Shows a job's progress no longer.
  void RemoveProgress(JobId job);
  Histogram* journal_fsync_seconds() const { return journal_fsync_seconds_; }

 private:
  void RemoveSeries(JobId job);
  Counter* Successes(const std::string& finished_reason);

  MetricsRegistry* const registry_;
  Gauge* const waiting_;
  Gauge* const database_bytes_;
  Histogram* const request_prompt_tokens_;
  Histogram* const request_generation_tokens_;
  Histogram* const journal_fsync_seconds_;

  Mutex mu_;
  std::set<JobId> in_progress_ ABSL_GUARDED_BY(mu_);  // jobs that have series
};

}  // namespace sluice
