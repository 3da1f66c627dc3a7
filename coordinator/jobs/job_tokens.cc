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
  for (size_t begin = 0, end = 0; begin < read.requests.size(); begin = end) {
    const int64_t index = read.requests[begin].index;
    while (end < read.requests.size() && read.requests[end].index == index) {
      ++end;
    }
    absl::StatusOr<std::vector<Request>> line = ResumedLine(
        job, absl::MakeSpan(read.requests).subspan(begin, end - begin));
    if (!line.ok()) {
      ++read.damaged;
      continue;
    }
    for (Request& request : *line) {
      tokens += std::ssize(request.known.tokens);
      requests.push_back(std::move(request));
    }
  }
  if (read.foreign > 0) {
    LogWarning(LogJob(FormatJobId(job.id)),
               ": tokens of unfinished requests were kept by another model, "
               "version or number format, and are dropped: these requests "
               "begin anew");
  }
  if (read.damaged > 0) {
    LogWarning(LogJob(FormatJobId(job.id)),
               ": tokens of unfinished requests that were kept are damaged, "
               "and are dropped: these requests begin anew");
  }
  if (requests.empty()) return absl::OkStatus();
  LogInfo(LogJob(FormatJobId(job.id)), " requests_resumed=", requests.size(),
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

absl::StatusOr<std::vector<Request>> JobManager::ResumedLine(
    const JobRecord& job, absl::Span<StoredProgress> known) {
  const int64_t index = known.front().index;
  SLUICE_ASSIGN_OR_RETURN(std::vector<StoredRequest> rows,
                          store_->ReadRequests(job.id, index, 1));
  if (rows.empty() || rows.front().index != index) {
    return absl::DataLossError("no such request");
  }
  Request line;
  SLUICE_ASSIGN_OR_RETURN(
      std::vector<Request> requests,
      Restore({job.id, index, job.started_us}, std::move(rows.front()), &line));
  const auto out_of_range = [vocab_size = VocabSize()](int32_t token) {
    return token < 0 || token >= vocab_size;
  };
  for (StoredProgress& of_part : known) {
    const std::vector<int32_t>& tokens = of_part.tokens;
    if (of_part.part < 0 || of_part.part >= std::ssize(requests)) {
      return absl::DataLossError("the line has no such part");
    }
    Request& request = requests[of_part.part];
    const bool logprobs = request.sampling.logprobs >= 0;
    if (tokens.empty() || std::ssize(tokens) >= request.max_tokens ||
        std::any_of(tokens.begin(), tokens.end(), out_of_range) ||
        of_part.logprobs.size() != (logprobs ? tokens.size() : 0)) {
      return absl::DataLossError("the tokens are not the request's");
    }
    request.known = {std::move(of_part.tokens), std::move(of_part.logprobs)};
  }
  return requests;
}

void JobManager::KeepTokens(std::vector<NewTokens> tokens) {
  {
    MutexLock lock(&mu_);
    for (NewTokens& more : tokens) {
      tokens_.push_back({more.job, more.index, more.begin,
                         std::move(more.answer.tokens),
                         std::move(more.answer.logprobs), more.part});
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
