#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/metrics/metrics.h"
#include "common/threads/mutex.h"
#include "common/types.h"
#include "coordinator/store/accepted_jobs.h"
#include "coordinator/store/job_record.h"
#include "coordinator/store/progress_log.h"
#include "coordinator/store/space_reserve.h"
#include "coordinator/store/sqlite_db.h"

namespace sluice {

// Keeps jobs, their requests and their results. Acknowledged changes survive a
// crash of the process or the machine. A result takes its request's place in
// one transaction, so that a request has exactly one result, ever. Requests and
// results have checksums: what a disk has changed is told as damaged. Of a
// request without a result, tokens that are known can be kept.
//
// Errors: kResourceExhausted when the disk is full, kDataLoss when the store is
// damaged, kUnavailable when it is busy; a call that failed changed nothing and
// may be repeated. Cancelling, deleting and purging work on a full disk too,
// with reserved room. Thread-safe; reads do not wait for writes.
class JobStore {
 public:
  // Opens or creates the database in this file. `commit_seconds` gets the time
  // of commits, fsync included; may be null. kDataLoss if the file is damaged
  // or no database, or jobs that were accepted are missing; kFailedPrecondition
  // if it is another program's, of a newer version, or cannot be opened.
  static absl::StatusOr<std::unique_ptr<JobStore>> Open(
      const std::filesystem::path& path, Histogram* commit_seconds = nullptr);

  // -- A job being uploaded: not to be seen until it is published.

  // Fills in `job->id` and `job->priority`; the state becomes VALIDATING.
  // kAlreadyExists if a job of this tenant, published or not, has its spec's
  // request_id.
  absl::Status CreateJob(JobRecord* job);
  // Adds requests, and results of lines that are no request, in one
  // transaction.
  absl::Status AddRows(JobId job, absl::Span<const StoredRequest> requests,
                       absl::Span<const StoredResult> results);
  // Starts the job (or ends it, when no request is pending).
  absl::StatusOr<JobRecord> PublishJob(JobId job, const JobTotals& totals,
                                       int64_t now_us);

  // -- Jobs. kNotFound if there is none (or it is not published, or deleted).

  absl::StatusOr<JobRecord> GetJob(JobId job);
  absl::StatusOr<JobRecord> FindByRequestId(const std::string& tenant,
                                            const std::string& request_id);
  // Lists jobs, newest first, from the one before `before` on: of one tenant,
  // or, without a value, of all.
  absl::StatusOr<std::vector<JobRecord>> ListJobs(
      JobId before, int limit,
      const std::optional<std::string>& tenant = std::nullopt);
  // Returns published jobs that have not ended, oldest first.
  absl::StatusOr<std::vector<JobRecord>> UnfinishedJobs();
  absl::StatusOr<int64_t> CountJobs(v1::JobState state);
  // Changes IN_PROGRESS to CANCELLING; any other state stays. Returns the job
  // as it is then.
  absl::StatusOr<JobRecord> BeginCancel(JobId job);
  // Sets whether a job that is IN_PROGRESS is paused; any other stays as it is.
  // Returns the job as it is then.
  absl::StatusOr<JobRecord> SetPaused(JobId job, bool paused);
  // Does the same with its priority.
  absl::StatusOr<JobRecord> SetPriority(JobId job, int64_t priority);
  // Stores the plan with those of the jobs that are IN_PROGRESS. Returns all
  // that are.
  absl::StatusOr<std::vector<JobRecord>> SetPlan(absl::string_view plan,
                                                 const std::set<JobId>& jobs);
  // Hides the job at once and forever; PurgeSome reclaims its space. For jobs
  // that have ended and for uploads that broke off.
  absl::Status MarkDeleted(JobId job);
  // Deletes the uploads that a previous process left unfinished.
  absl::Status MarkUnpublishedDeleted();
  // Removes about `rows` rows of deleted jobs. False: none are left.
  absl::StatusOr<bool> PurgeSome(int64_t rows);

  // -- Requests and results.

  // Reads pending requests with index >= from, in order: at most `limit`, and
  // some MiB, but one at least. An empty result: there are no more.
  absl::StatusOr<std::vector<StoredRequest>> ReadRequests(JobId job,
                                                          int64_t from,
                                                          int64_t limit);

  struct Commit {
    // Parallel to the results: false if a result was ignored, as its request
    // was not pending any more.
    std::vector<bool> recorded;
    std::vector<JobRecord> jobs;  // those touched, as they are now
  };
  // Records results in one transaction; ends the jobs that have all theirs.
  absl::StatusOr<Commit> CommitResults(absl::Span<const StoredResult> results,
                                       int64_t now_us);

  // Reads results with index >= offset in order, up to the first one missing,
  // while their lines fit `max_bytes` (the first one always).
  absl::StatusOr<std::vector<StoredLine>> ReadResults(JobId job, int64_t offset,
                                                      int64_t max_bytes);
  // Reads results that are errors with index >= from in order, at most `limit`,
  // and some MiB, but one at least. Those before them need not be there.
  absl::StatusOr<std::vector<StoredLine>> ReadErrors(JobId job, int64_t from,
                                                     int64_t limit);

  // -- Tokens of requests without a result. `key` says what they depend on
  // beside the request; what another key wrote is never read.

  // Adds to what is known of requests, in one transaction. A request that has
  // its result, and a job that is not IN_PROGRESS, need none.
  absl::Status AddProgress(absl::string_view key,
                           absl::Span<const StoredProgress> progress);
  // Returns what is known of the job's requests without a result, and drops
  // what other keys wrote.
  absl::StatusOr<ReadProgress> TakeProgress(JobId job, absl::string_view key);

 private:
  JobStore(const std::filesystem::path& path, Histogram* commit_seconds);

  absl::Status Initialize();
  absl::Status PrepareWriter() ABSL_EXCLUSIVE_LOCKS_REQUIRED(write_mu_);
  absl::Status PrepareReader() ABSL_EXCLUSIVE_LOCKS_REQUIRED(read_mu_);
  absl::Status CommitTimed(SqliteTransaction& transaction);
  // Runs one that gets the number of a job and, if there is one, a value, on
  // any disk.
  absl::StatusOr<JobRecord> ChangeJob(JobId job, SqliteStatement& statement,
                                      std::optional<int64_t> value = {})
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(write_mu_);
  absl::Status InsertResult(const StoredResult& result)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(write_mu_);
  // Runs a statement in a transaction of its own.
  absl::Status RunAlone(SqliteStatement& statement)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(write_mu_);

  // Opens the writer, unless jobs are missing.
  absl::Status OpenWriter() ABSL_EXCLUSIVE_LOCKS_REQUIRED(write_mu_);
  void WriteAccepted() ABSL_EXCLUSIVE_LOCKS_REQUIRED(write_mu_);
  // Makes a change that frees room, now or later; on a full disk it uses the
  // reserve. `change` is told whether it has only that.
  absl::Status ChangeOnAnyDisk(
      const std::function<absl::Status(bool little_room)>& change)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(write_mu_);
  // Returns true if there is more to purge.
  absl::StatusOr<bool> PurgeRows(int64_t rows, bool little_room)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(write_mu_);
  absl::StatusOr<Commit> CommitRows(absl::Span<const StoredResult> results,
                                    int64_t now_us)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(write_mu_);

  const std::filesystem::path path_;
  Histogram* const commit_seconds_;

  Mutex write_mu_;
  const AcceptedJobs accepted_jobs_;
  SpaceReserve reserve_ ABSL_GUARDED_BY(write_mu_);
  int64_t accepted_ ABSL_GUARDED_BY(write_mu_) = 0;
  bool purged_ ABSL_GUARDED_BY(write_mu_) = false;  // and is not finished
  std::unique_ptr<SqliteDb> writer_ ABSL_GUARDED_BY(write_mu_);
  std::unique_ptr<ProgressLog> progress_ ABSL_GUARDED_BY(write_mu_);
  struct {
    SqliteStatement create_job, publish_job, count_accepted, job, cancel_job,
        delete_job, delete_unpublished, find_deleted, forget_job, set_plan,
        running_jobs, set_paused, set_priority;
    SqliteStatement add_request, remove_request, add_result, count_results;
    SqliteStatement purge_requests, purge_results;
  } write_ ABSL_GUARDED_BY(write_mu_);

  Mutex read_mu_;
  std::unique_ptr<SqliteDb> reader_ ABSL_GUARDED_BY(read_mu_);
  struct {
    SqliteStatement job, job_by_request_id, list_jobs, list_tenants_jobs,
        unfinished_jobs, count_jobs, requests, results, errors;
  } read_ ABSL_GUARDED_BY(read_mu_);
};

}  // namespace sluice
