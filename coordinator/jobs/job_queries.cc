// The questions that a JobManager answers.

#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "coordinator/jobs/job_ids.h"
#include "coordinator/jobs/job_manager_impl.h"

namespace sluice {
namespace {

constexpr int kDefaultPage = 50;
constexpr int kMaxPage = 1000;
// gRPC clients refuse messages of more than 4 MB.
constexpr size_t kMostPageBytes = 2 << 20;

}  // namespace

absl::StatusOr<v1::Job> JobManagerImpl::GetJob(const std::string& id) {
  SLUICE_ASSIGN_OR_RETURN(const JobId job, ParseJobId(id));
  if (auto live = live_.Find(job)) return *std::move(live);
  SLUICE_ASSIGN_OR_RETURN(const JobRecord stored, store_->GetJob(job));
  return live_.Describe(stored);
}

absl::StatusOr<v1::ListJobsResponse> JobManagerImpl::ListJobs(
    const v1::ListJobsRequest& request) {
  if (request.page_size() < 0) {
    return absl::InvalidArgumentError("page_size must not be negative");
  }
  JobId before(std::numeric_limits<int64_t>::max());
  if (!request.page_token().empty()) {
    SLUICE_ASSIGN_OR_RETURN(before, ParsePageToken(request.page_token()));
  }
  const int size = request.page_size() == 0
                       ? kDefaultPage
                       : std::min(request.page_size(), kMaxPage);
  // One more tells whether there is another page.
  SLUICE_ASSIGN_OR_RETURN(const std::vector<JobRecord> jobs,
                          store_->ListJobs(before, size + 1));
  v1::ListJobsResponse response;
  size_t bytes = 0;
  for (const JobRecord& job : jobs) {
    v1::Job described = live_.Describe(job);
    bytes += described.ByteSizeLong();
    const int count = response.jobs_size();
    if (count == size || (count > 0 && bytes > kMostPageBytes)) {
      SLUICE_ASSIGN_OR_RETURN(const JobId last,
                              ParseJobId(response.jobs(count - 1).id()));
      response.set_next_page_token(FormatPageToken(last));
      break;
    }
    *response.add_jobs() = std::move(described);
  }
  return response;
}

absl::StatusOr<v1::ResultChunk> JobManagerImpl::ReadResults(
    const std::string& id, int64_t offset, int64_t max_bytes) {
  SLUICE_ASSIGN_OR_RETURN(const JobId job, ParseJobId(id));
  if (offset < 0) {
    return absl::InvalidArgumentError("offset must not be negative");
  }
  SLUICE_RETURN_IF_ERROR(store_->GetJob(job).status());
  SLUICE_ASSIGN_OR_RETURN(std::vector<v1::Result> results,
                          store_->ReadResults(job, offset, max_bytes));
  v1::ResultChunk chunk;
  chunk.set_next_offset(offset + static_cast<int64_t>(results.size()));
  for (v1::Result& result : results) *chunk.add_results() = std::move(result);
  return chunk;
}

std::vector<std::string> JobManagerImpl::WaitForChanges(
    absl::Duration timeout) {
  std::vector<std::string> ids;
  for (const JobId job : live_.WaitForChanges(timeout)) {
    ids.push_back(FormatJobId(job));
  }
  return ids;
}

}  // namespace sluice
