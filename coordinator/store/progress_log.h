#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/types.h"
#include "coordinator/store/job_record.h"
#include "coordinator/store/sqlite_db.h"

namespace sluice {

// The tokens of requests without a result, as a log: each append adds to a job
// one row (or some, of 4 MiB) with the new tokens of all its requests, 4 bytes
// a token and 20 a request, so that nothing is written twice and no row is
// touched when a request ends. A log that has doubled since is written anew,
// without the requests that have results; a job that ends takes its log along.
//
// A row has a key: what the tokens depend on beside the request. Rows of
// another key are never read. All calls are made within the caller's
// transaction, or without one if they only read. Thread-compatible.
class ProgressLog {
 public:
  // `db`, which has the tables, must outlive the log.
  static absl::StatusOr<std::unique_ptr<ProgressLog>> Create(SqliteDb* db);

  // Adds tokens of requests of jobs that are IN_PROGRESS; others are left out.
  absl::Status Append(absl::string_view key,
                      absl::Span<const StoredProgress> progress);
  // Reads what is known of requests without a result, by index.
  absl::StatusOr<ReadProgress> Read(JobId job, absl::string_view key);
  // Removes the job's rows of other keys.
  absl::Status RemoveForeign(JobId job, absl::string_view key);
  // Removes the job's log.
  absl::Status Forget(JobId job);

 private:
  struct Size {
    int64_t bytes = 0;
    int64_t written_anew = 0;  // when it was last written anew
  };
  ProgressLog() = default;

  absl::Status AppendToJob(JobId job, absl::string_view key,
                           absl::Span<const StoredProgress> progress);
  absl::Status Rewrite(JobId job, absl::string_view key,
                       absl::Span<const StoredProgress> progress);
  // Adds rows; returns their bytes.
  absl::StatusOr<int64_t> Write(JobId job, absl::string_view key,
                                absl::Span<const StoredProgress> progress);
  absl::StatusOr<bool> IsPending(JobId job, int64_t index);
  absl::StatusOr<bool> IsInProgress(JobId job);

  SqliteStatement add_, next_, read_, forget_, remove_foreign_, pending_,
      in_progress_;
  std::map<JobId, Size> sizes_;
};

}  // namespace sluice
