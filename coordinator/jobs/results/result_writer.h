#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/threads/deadline.h"
#include "common/threads/mutex.h"
#include "common/threads/thread.h"
#include "coordinator/jobs/results/result_format.h"
#include "coordinator/request.h"
#include "coordinator/store/job_store.h"

namespace sluice {

// The thread that brings results to the store: all that wait go in one
// transaction, so that one fsync serves many. Between them it does background
// work (cancelling, purging) a piece at a time. When the store fails, results
// stay in memory and are tried again, until it works or the process stops.
// Thread-safe.
class ResultWriter {
 public:
  struct Options {
    // When so much waits, Push waits too.
    size_t max_waiting = 8192;
    int64_t max_waiting_bytes = 64 << 20;
    // Of one transaction. As a line, a result with logprobs is ten times as
    // large as in memory.
    size_t max_batch = 4096;
    int64_t max_batch_bytes = 4 << 20;
    absl::Duration first_retry = absl::Milliseconds(100);
    absl::Duration last_retry = absl::Seconds(5);
    // All are called on the writer's thread only.
    std::function<StoredResult(const ResultHead&, const Generation&)> format;
    std::function<absl::Status(absl::Span<const StoredResult>)> commit;
    // Does one piece of background work; false when there is none. If it
    // fails it is tried again later; results do not wait for that.
    std::function<absl::StatusOr<bool>()> background;
    // The store fails, or (OK) works again.
    std::function<void(const absl::Status&)> on_store_state;
  };
  explicit ResultWriter(Options options);
  // As Stop.
  ~ResultWriter();

  // Waits while too much waits to be committed.
  void Push(ResultHead head, Generation generation);
  // From now on Push takes what comes at once: nobody makes more, and who ends
  // must not wait for a disk that is full.
  void StopWaiting();
  // There is background work.
  void Wake();
  // Returns when everything pushed before is committed, or could not be.
  void Flush();
  // Commits what waits, with one try if the store fails, and ends the thread.
  // Then nothing may be pushed any more.
  void Stop();

 private:
  struct Item {
    ResultHead head;
    Generation generation;
    int64_t bytes;
  };
  void Run();
  std::vector<StoredResult> TakeBatch() ABSL_LOCKS_EXCLUDED(mu_);
  // Commits, again and again if need be; false if the writer stops first.
  bool CommitBatch(const std::vector<StoredResult>& batch)
      ABSL_LOCKS_EXCLUDED(mu_);
  void DoBackground() ABSL_LOCKS_EXCLUDED(mu_);

  const Options options_;
  Mutex mu_;
  CondVar work_;     // for the thread
  CondVar changed_;  // for Push and Flush
  std::deque<Item> waiting_ ABSL_GUARDED_BY(mu_);
  int64_t waiting_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t pushed_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t done_ ABSL_GUARDED_BY(mu_) = 0;  // committed or given up
  uint64_t failures_ ABSL_GUARDED_BY(mu_) = 0;
  bool background_ ABSL_GUARDED_BY(mu_) = true;
  // When background work that failed is due again.
  Deadline background_at_ ABSL_GUARDED_BY(mu_) = Deadline::Never();
  bool waits_ ABSL_GUARDED_BY(mu_) = true;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  Thread thread_;
};

}  // namespace sluice
