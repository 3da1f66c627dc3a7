#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/access.h"
#include "coordinator/jobs/job_manager.h"
#include "sluice/v1/jobs.pb.h"

namespace sluice {

// What callers do with jobs, whether they come by gRPC or by HTTP. A job that
// the caller may not see is not found (kNotFound), whatever is asked about it;
// other errors are JobManager's. Changes wait for the disk. Thread-safe.
class JobOperations {
 public:
  // `jobs` must outlive it.
  explicit JobOperations(JobManager* jobs) : jobs_(jobs) {}

  absl::StatusOr<v1::Job> Get(const std::string& id, const Caller& caller);
  absl::StatusOr<v1::ListJobsResponse> List(const v1::ListJobsRequest& request,
                                            const Caller& caller);
  absl::StatusOr<v1::Job> Cancel(const std::string& id, const Caller& caller);
  absl::StatusOr<v1::Job> Pause(const std::string& id, const Caller& caller);
  absl::StatusOr<v1::Job> Resume(const std::string& id, const Caller& caller);
  absl::StatusOr<v1::Job> SetPriority(const std::string& id, int32_t priority,
                                      const Caller& caller);
  absl::Status Delete(const std::string& id, const Caller& caller);

  absl::StatusOr<std::vector<JobManager::FailedRequest>> ReadErrors(
      const std::string& id, int64_t from, int64_t limit, const Caller& caller);
  absl::StatusOr<JobHistory> History(const std::string& id,
                                     const Caller& caller);
  // Of a job that one of these has returned.
  LiveJobs::Pace PaceOf(const v1::Job& job) { return jobs_->PaceOf(job.id()); }

 private:
  JobManager* const jobs_;
};

}  // namespace sluice
