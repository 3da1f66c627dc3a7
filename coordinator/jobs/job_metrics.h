#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "common/metrics/metrics.h"
#include "coordinator/store/job_record.h"
#include "sluice/v1/jobs.pb.h"

namespace sluice {

// What the jobs export. Thread-safe; the registry must outlive it.
class JobMetrics {
 public:
  explicit JobMetrics(MetricsRegistry* registry);

  // A result that was recorded.
  void CountResult(const StoredResult& result);
  // Lines of a published job that were no requests.
  void CountErrors(const std::string& code, int64_t count);
  void SetWaiting(int64_t requests);
  // The database's size, and what is free beside it.
  void SetState(const std::filesystem::path& state_dir);
  void SetJobs(v1::JobState state, int64_t jobs);
  Histogram* journal_fsync_seconds() const { return journal_fsync_seconds_; }

 private:
  Counter* Successes(const std::string& finished_reason);

  MetricsRegistry* const registry_;
  Gauge* const waiting_;
  Gauge* const database_bytes_;
  Histogram* const request_prompt_tokens_;
  Histogram* const request_generation_tokens_;
  Histogram* const journal_fsync_seconds_;
};

}  // namespace sluice
