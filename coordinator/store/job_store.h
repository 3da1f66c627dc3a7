#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/metrics/metrics.h"
#include "common/types.h"
#include "sluice/v1/jobs.pb.h"

namespace sluice {

// A job as it is stored. Times are microseconds since the Unix epoch; 0: not
// yet.
struct JobRecord {
  JobId id;
  std::string model;  // served when the job was created
  v1::JobSpec spec;
  v1::JobState state = v1::JOB_STATE_UNSPECIFIED;
  int64_t created_us = 0;
  int64_t started_us = 0;
  int64_t finished_us = 0;
  // Of requests; `failed` includes `cancelled`.
  int64_t total = 0;
  int64_t completed = 0;
  int64_t failed = 0;
  int64_t cancelled = 0;
  // Of requests that ended with an answer.
  int64_t prompt_tokens = 0;
  int64_t generation_tokens = 0;
  int64_t replays = 0;
  // Of all requests but those that ended with an error: the tokens of their
  // prompts, and what they may generate. Both 0: not known, as the job was made
  // by an earlier version.
  int64_t wanted_prompt_tokens = 0;
  int64_t wanted_max_tokens = 0;
  // What those that ended with an answer might have generated.
  int64_t answered_max_tokens = 0;
  // Requests with the default of max_tokens, and those that it ended.
  int64_t by_default = 0;
  int64_t cut_by_default = 0;
  std::string plan;  // JSON of the last plan that it ran by; "": none was made
  std::string content;  // a hash of its input; "": of a job of long ago

  int64_t pending() const { return total - completed - failed; }
};

// A request without a result.
struct StoredRequest {
  int64_t index = 0;
  std::string custom_id;
  std::vector<int32_t> prompt;
  std::string params;  // opaque to the store
};

enum class ResultKind { kAnswer, kError, kCancelled };

struct StoredResult {
  JobId job;
  int64_t index = 0;
  ResultKind kind = ResultKind::kAnswer;
  std::string line;
  int64_t prompt_tokens = 0;  // of the request
  int64_t max_tokens = 0;     // of the request
  // These are added to the job's.
  int64_t generation_tokens = 0;
  int64_t replays = 0;
  bool cut_by_default = false;
  // How it ended, for whoever commits it: a finish reason or an error code.
  // Not stored.
  std::string outcome;
};

// What an upload had in it.
struct JobTotals {
  int64_t lines = 0;
  int64_t failed = 0;  // lines that are no request
  int64_t prompt_tokens = 0;
  int64_t max_tokens = 0;
  int64_t by_default = 0;  // requests with the default of max_tokens
  std::string content;     // a hash of the input
  std::map<std::string, int64_t> errors;  // of lines, by code; not stored
};

// Keeps jobs, their requests and their results. What a method has acknowledged
// survives the process and the machine. A result takes its request's place in
// one transaction, so that a request has exactly one result, ever.
//
// Errors: kResourceExhausted when the disk is full, kDataLoss when the store
// is damaged, kUnavailable when it is busy; a call that failed changed nothing
// and may be repeated. Cancelling, deleting and purging work on a full disk
// too, with room that is kept for them. Thread-safe; reads do not wait for
// writes.
class JobStore {
 public:
  virtual ~JobStore() = default;

  // -- A job being uploaded: not to be seen until it is published.

  // Fills in `job->id`; the state becomes VALIDATING. kAlreadyExists if a job,
  // published or not, has its spec's request_id.
  virtual absl::Status CreateJob(JobRecord* job) = 0;
  // Adds requests, and results of lines that are no request, in one
  // transaction.
  virtual absl::Status AddRows(JobId job,
                               absl::Span<const StoredRequest> requests,
                               absl::Span<const StoredResult> results) = 0;
  // Starts the job (or ends it, when no request is pending).
  virtual absl::StatusOr<JobRecord> PublishJob(JobId job,
                                               const JobTotals& totals,
                                               int64_t now_us) = 0;

  // -- Jobs. kNotFound if there is none (or it is not published, or deleted).

  virtual absl::StatusOr<JobRecord> GetJob(JobId job) = 0;
  virtual absl::StatusOr<JobRecord> FindByRequestId(
      const std::string& request_id) = 0;
  // Newest first, from the one before `before` on.
  virtual absl::StatusOr<std::vector<JobRecord>> ListJobs(JobId before,
                                                          int limit) = 0;
  // Published jobs that have not ended, oldest first.
  virtual absl::StatusOr<std::vector<JobRecord>> UnfinishedJobs() = 0;
  virtual absl::StatusOr<int64_t> CountJobs(v1::JobState state) = 0;
  // IN_PROGRESS becomes CANCELLING; any other state stays. The job as it is
  // then.
  virtual absl::StatusOr<JobRecord> BeginCancel(JobId job) = 0;
  // Records the plan with all that are IN_PROGRESS; gives these.
  virtual absl::StatusOr<std::vector<JobRecord>> SetPlan(
      absl::string_view plan) = 0;
  // Hides the job at once and for ever; PurgeSome reclaims its space. For jobs
  // that have ended and for uploads that broke off.
  virtual absl::Status MarkDeleted(JobId job) = 0;
  // What a previous process left half uploaded.
  virtual absl::Status MarkUnpublishedDeleted() = 0;
  // Removes about `rows` rows of deleted jobs. False when none are left.
  virtual absl::StatusOr<bool> PurgeSome(int64_t rows) = 0;

  // -- Requests and results.

  // Pending requests with index >= from, in order: at most `limit`, and some
  // MiB, but one at least. None: there are no more.
  virtual absl::StatusOr<std::vector<StoredRequest>> ReadRequests(
      JobId job, int64_t from, int64_t limit) = 0;

  struct Commit {
    // Parallel to the results: false if its request was not pending any more;
    // the result was then ignored.
    std::vector<bool> recorded;
    std::vector<JobRecord> jobs;  // those touched, as they are now
  };
  // Records results in one transaction; ends the jobs that have all theirs.
  virtual absl::StatusOr<Commit> CommitResults(
      absl::Span<const StoredResult> results, int64_t now_us) = 0;

  // Results with index >= offset in order, up to the first one missing, while
  // their lines fit `max_bytes` (the first one always).
  virtual absl::StatusOr<std::vector<v1::Result>> ReadResults(
      JobId job, int64_t offset, int64_t max_bytes) = 0;
};

struct SqliteJobStoreOptions {
  std::filesystem::path path;  // the database file
  Histogram* commit_seconds =
      nullptr;  // time of commits, fsync included; may be null
};

// Opens or creates the database. kDataLoss if the file is damaged or no
// database, or jobs that were accepted are missing; kFailedPrecondition if it
// is another program's, of a newer version, or cannot be opened.
absl::StatusOr<std::unique_ptr<JobStore>> OpenSqliteJobStore(
    const SqliteJobStoreOptions& options);

}  // namespace sluice
