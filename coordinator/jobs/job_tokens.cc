// What JobManager knows of requests without a result: tokens are kept while
// they are generated, and handed out again by the next process.

#include <algorithm>
#include <iterator>
#include <utility>

#include "common/host/logging.h"
#include "common/status_macros.h"
#include "coordinator/jobs/job_manager.h"
#include "coordinator/jobs/job_state.h"

namespace sluice {

absl::Status JobManager::Resume(const JobRecord& job) {
  SLUICE_ASSIGN_OR_RETURN(ReadProgress read,
                          store_->TakeProgress(job.id, options_.answer_key));
  std::vector<Request> requests;
  int64_t tokens = 0;
  for (StoredProgress& known : read.requests) {
    absl::StatusOr<Request> request = ResumedRequest(job, std::move(known));
    if (!request.ok()) {
      ++read.damaged;
      continue;
    }
    tokens += std::ssize(request->known.tokens);
    requests.push_back(*std::move(request));
  }
  if (read.foreign > 0) {
    LogWarning("job=", FormatJobId(job.id),
               ": tokens of unfinished requests were kept by another model, "
               "version or number format, and are dropped: these requests "
               "begin anew");
  }
  if (read.damaged > 0) {
    LogWarning("job=", FormatJobId(job.id),
               ": tokens of unfinished requests that were kept are damaged, "
               "and are dropped: these requests begin anew");
  }
  if (requests.empty()) return absl::OkStatus();
  LogInfo("job=", FormatJobId(job.id), " requests_resumed=", requests.size(),
          " known_tokens=", tokens);
  {
    MutexLock lock(&take_mu_);
    for (const Request& request : requests) {
      resumed_[job.id].insert(request.index);
    }
  }
  live_.AddBegun(job.id, std::move(requests));
  return absl::OkStatus();
}

absl::StatusOr<Request> JobManager::ResumedRequest(const JobRecord& job,
                                                   StoredProgress known) {
  SLUICE_ASSIGN_OR_RETURN(std::vector<StoredRequest> rows,
                          store_->ReadRequests(job.id, known.index, 1));
  if (rows.empty() || rows.front().index != known.index) {
    return absl::DataLossError("no such request");
  }
  Request request;
  SLUICE_RETURN_IF_ERROR(Restore({job.id, known.index, job.started_us},
                                 std::move(rows.front()), &request));
  const auto out_of_range = [vocab_size = VocabSize()](int32_t token) {
    return token < 0 || token >= vocab_size;
  };
  const std::vector<int32_t>& tokens = known.tokens;
  const bool logprobs = request.sampling.logprobs >= 0;
  if (tokens.empty() || std::ssize(tokens) >= request.max_tokens ||
      std::any_of(tokens.begin(), tokens.end(), out_of_range) ||
      known.logprobs.size() != (logprobs ? tokens.size() : 0)) {
    return absl::DataLossError("the tokens are not the request's");
  }
  request.known = {std::move(known.tokens), std::move(known.logprobs)};
  return request;
}

void JobManager::KeepTokens(std::vector<NewTokens> tokens) {
  {
    MutexLock lock(&mu_);
    for (NewTokens& more : tokens) {
      tokens_.push_back({more.job, more.index, more.begin,
                         std::move(more.answer.tokens),
                         std::move(more.answer.logprobs)});
    }
  }
  writer_->Wake();
}

bool JobManager::keeping_tokens() const {
  MutexLock lock(&mu_);
  return !tokens_.empty();
}

absl::Status JobManager::StoreTokens() {
  std::vector<StoredProgress> tokens;
  {
    MutexLock lock(&mu_);
    tokens = std::move(tokens_);
    tokens_.clear();
  }
  if (tokens.empty()) return absl::OkStatus();
  // Jobs of one after the other, as the store wants them.
  std::stable_sort(tokens.begin(), tokens.end(),
                   [](const StoredProgress& a, const StoredProgress& b) {
                     return a.job < b.job;
                   });
  absl::Status status = StoreReports();
  if (status.ok()) status = store_->AddProgress(options_.answer_key, tokens);
  if (status.ok()) return status;
  MutexLock lock(&mu_);
  tokens.insert(tokens.end(), std::make_move_iterator(tokens_.begin()),
                std::make_move_iterator(tokens_.end()));
  tokens_ = std::move(tokens);
  return Annotate(status, "tokens of unfinished requests can't be stored");
}

void JobManager::Flush() {
  writer_->Flush();
  MutexLock lock(&commit_mu_);
  if (const absl::Status kept = StoreTokens(); !kept.ok()) {
    LogWarning(kept.message());
  }
}

absl::StatusOr<JobManager::Kept> JobManager::KeptTokens(const std::string& id) {
  SLUICE_ASSIGN_OR_RETURN(const JobId job, ParseJobId(id));
  SLUICE_ASSIGN_OR_RETURN(const ReadProgress read,
                          store_->TakeProgress(job, options_.answer_key));
  Kept kept;
  for (const StoredProgress& known : read.requests) {
    ++kept.requests;
    kept.tokens += std::ssize(known.tokens);
  }
  return kept;
}

}  // namespace sluice
