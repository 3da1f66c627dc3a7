#include "server/job_operations.h"

#include "common/status_macros.h"

namespace sluice {

absl::StatusOr<v1::Job> JobOperations::Get(const std::string& id,
                                           const Caller& caller) {
  return jobs_->GetJob(id, caller);
}

absl::StatusOr<v1::ListJobsResponse> JobOperations::List(
    const v1::ListJobsRequest& request, const Caller& caller) {
  return jobs_->ListJobs(request, caller);
}

absl::StatusOr<v1::Job> JobOperations::Cancel(const std::string& id,
                                              const Caller& caller) {
  SLUICE_RETURN_IF_ERROR(Get(id, caller).status());
  return jobs_->CancelJob(id);
}

absl::StatusOr<v1::Job> JobOperations::Pause(const std::string& id,
                                             const Caller& caller) {
  SLUICE_RETURN_IF_ERROR(Get(id, caller).status());
  return jobs_->PauseJob(id);
}

absl::StatusOr<v1::Job> JobOperations::Resume(const std::string& id,
                                              const Caller& caller) {
  SLUICE_RETURN_IF_ERROR(Get(id, caller).status());
  return jobs_->ResumeJob(id);
}

absl::StatusOr<v1::Job> JobOperations::SetPriority(const std::string& id,
                                                   int32_t priority,
                                                   const Caller& caller) {
  SLUICE_RETURN_IF_ERROR(Get(id, caller).status());
  return jobs_->SetJobPriority(id, priority);
}

absl::Status JobOperations::Delete(const std::string& id,
                                   const Caller& caller) {
  SLUICE_RETURN_IF_ERROR(Get(id, caller).status());
  return jobs_->DeleteJob(id);
}

absl::StatusOr<std::vector<JobManager::FailedRequest>>
JobOperations::ReadErrors(const std::string& id, int64_t from, int64_t limit,
                          const Caller& caller) {
  SLUICE_RETURN_IF_ERROR(Get(id, caller).status());
  return jobs_->ReadErrors(id, from, limit);
}

absl::StatusOr<JobHistory> JobOperations::History(const std::string& id,
                                                  const Caller& caller) {
  SLUICE_RETURN_IF_ERROR(Get(id, caller).status());
  return jobs_->History(id);
}

}  // namespace sluice
