// What JobManager tells of its jobs.

#include <algorithm>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "common/text/text.h"
#include "coordinator/jobs/job_manager.h"
#include "coordinator/jobs/job_state.h"
#include "coordinator/jobs/results/result_format.h"

namespace sluice {
namespace {

constexpr int kDefaultPage = 50;
constexpr int kMaxPage = 1000;
// gRPC clients refuse messages of more than 4 MB.
constexpr size_t kMaxPageBytes = 2 << 20;
// Of each text of a failed request.
constexpr size_t kMaxShownBytes = 2000;
constexpr char kDamagedResult[] =
    "the stored result is damaged: the disk holds other bytes than were "
    "written; submit the request again";

// A text of a result line, cut; "" if it is not there.
std::string ShownText(const nlohmann::json& line, const char* pointer) {
  const nlohmann::json::json_pointer where(pointer);
  if (!line.is_object() || !line.contains(where)) return "";
  const nlohmann::json& value = line.at(where);
  if (!value.is_string()) return "";
  const std::string& text = value.get_ref<const std::string&>();
  const absl::string_view shown = ClipUtf8(text, kMaxShownBytes);
  return absl::StrCat(shown, shown.size() < text.size() ? " ..." : "");
}

// When a tenant without room is to try again, if nothing tells when a job ends.
constexpr absl::Duration kRetryDelay = absl::Seconds(5);
constexpr absl::Duration kMaxRetryDelay = absl::Minutes(5);

}  // namespace

absl::Duration JobManager::RetryDelay(const std::string& tenant) const {
  const std::optional<double> left = live_.SecondsToFirstEnd(tenant);
  return absl::Ceil(std::clamp(left ? absl::Seconds(*left) : kRetryDelay,
                               absl::Seconds(1), kMaxRetryDelay),
                    absl::Seconds(1));
}

absl::StatusOr<v1::Job> JobManager::GetJob(const std::string& id) {
  SLUICE_ASSIGN_OR_RETURN(const JobId job, ParseJobId(id));
  if (auto live = live_.Find(job)) return *std::move(live);
  SLUICE_ASSIGN_OR_RETURN(const JobRecord stored, store_->GetJob(job));
  return live_.Describe(stored);
}

absl::StatusOr<v1::Job> JobManager::GetJob(const std::string& id,
                                           const Caller& caller) {
  SLUICE_ASSIGN_OR_RETURN(v1::Job job, GetJob(id));
  // As if there were none, so that nobody learns of others' jobs.
  if (!caller.admin && job.tenant() != caller.tenant) {
    return NotFound("no job ", job.id());
  }
  return job;
}

absl::StatusOr<v1::ListJobsResponse> JobManager::ListJobs(
    const v1::ListJobsRequest& request, const Caller& caller) {
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
  // One job more tells whether there is another page.
  SLUICE_ASSIGN_OR_RETURN(
      const std::vector<JobRecord> jobs,
      store_->ListJobs(
          before, size + 1,
          caller.admin ? std::nullopt : std::optional(caller.tenant)));
  v1::ListJobsResponse response;
  size_t bytes = 0;
  for (const JobRecord& job : jobs) {
    v1::Job described = live_.Describe(job);
    bytes += described.ByteSizeLong();
    const int count = response.jobs_size();
    if (count == size || (count > 0 && bytes > kMaxPageBytes)) {
      SLUICE_ASSIGN_OR_RETURN(const JobId last,
                              ParseJobId(response.jobs(count - 1).id()));
      response.set_next_page_token(FormatPageToken(last));
      break;
    }
    *response.add_jobs() = std::move(described);
  }
  return response;
}

absl::StatusOr<v1::ResultChunk> JobManager::ReadResults(const std::string& id,
                                                        int64_t offset,
                                                        int64_t max_bytes) {
  SLUICE_ASSIGN_OR_RETURN(const JobId job, ParseJobId(id));
  if (offset < 0) {
    return absl::InvalidArgumentError("offset must not be negative");
  }
  SLUICE_RETURN_IF_ERROR(store_->GetJob(job).status());
  SLUICE_ASSIGN_OR_RETURN(std::vector<StoredLine> lines,
                          store_->ReadResults(job, offset, max_bytes));
  v1::ResultChunk chunk;
  chunk.set_next_offset(offset + std::ssize(lines));
  for (StoredLine& line : lines) {
    v1::Result& result = *chunk.add_results();
    result.set_index(line.index);
    result.set_is_error(line.is_error || line.damaged);
    if (line.damaged) {
      line.line = FormatError(
          job, line.index, "",
          ErrorOfStatus(absl::DataLossError(kDamagedResult)), kFailed);
    }
    result.set_line(std::move(line.line));
  }
  return chunk;
}

absl::StatusOr<std::vector<JobManager::FailedRequest>> JobManager::ReadErrors(
    const std::string& id, int64_t from, int64_t limit) {
  SLUICE_ASSIGN_OR_RETURN(const JobId job, ParseJobId(id));
  SLUICE_RETURN_IF_ERROR(store_->GetJob(job).status());
  SLUICE_ASSIGN_OR_RETURN(const std::vector<StoredLine> lines,
                          store_->ReadErrors(job, from, limit));
  std::vector<FailedRequest> failed;
  for (const StoredLine& line : lines) {
    FailedRequest& request = failed.emplace_back();
    request.index = line.index;
    if (line.damaged) {
      request.code = "data_loss";
      request.message = kDamagedResult;
      continue;
    }
    const auto error = nlohmann::json::parse(line.line, nullptr, false);
    request.custom_id = ShownText(error, "/custom_id");
    request.code = ShownText(error, "/error/code");
    request.message = ShownText(error, "/error/message");
  }
  return failed;
}

absl::StatusOr<JobHistory> JobManager::History(const std::string& id) const {
  SLUICE_ASSIGN_OR_RETURN(const JobId job, ParseJobId(id));
  return live_.History(job);
}

LiveJobs::Pace JobManager::PaceOf(const std::string& id) const {
  const absl::StatusOr<JobId> job = ParseJobId(id);
  return job.ok() ? live_.PaceOf(*job) : LiveJobs::Pace();
}

std::vector<std::string> JobManager::WaitForChanges(absl::Duration timeout) {
  std::vector<std::string> ids;
  for (const JobId job : live_.WaitForChanges(timeout)) {
    ids.push_back(FormatJobId(job));
  }
  return ids;
}

}  // namespace sluice
