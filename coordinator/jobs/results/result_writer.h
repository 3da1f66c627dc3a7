#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/threads/deadline.h"
#include "common/threads/mutex.h"
#include "common/threads/thread.h"
#include "coordinator/request_queue.h"
#include "coordinator/store/job_record.h"

namespace sluice {

// What becomes of results. All is called on the writer's thread only.
class ResultSink {
 public:
  virtual ~ResultSink() = default;
  virtual StoredResult Format(FinishedRequest finished) = 0;
  // Stores them all or, if it fails, none: then they come again.
  virtual absl::Status Commit(absl::Span<const StoredResult> results) = 0;
  // Does one piece of background work; false when there is none. If it fails
  // it is tried again later; results do not wait for that.
  virtual absl::StatusOr<bool> DoBackgroundWork() = 0;
  // Some were stored, or given up: the backlog is smaller.
  virtual void OnWritten() {}
};

// The thread that brings results to the store: all that wait go in one
// transaction, so that one fsync serves many. Between them it does background
// work (cancelling, purging) a piece at a time. When the store fails, results
// stay in memory and are tried again, until it works or the process stops.
// Thread-safe.
class ResultWriter {
 public:
  struct Options {
    // When so many wait, or they hold 64 MiB, WaitForRoom waits.
    size_t max_waiting = 8192;
    // Of one transaction. As a line, a result with logprobs is ten times as
    // large as in memory.
    size_t max_batch = 4096;
    int64_t max_batch_bytes = 4 << 20;
    absl::Duration first_retry = absl::Milliseconds(100);
    absl::Duration last_retry = absl::Seconds(5);
  };
  // `sink` must outlive the writer.
  ResultWriter(const Options& options, ResultSink* sink);
  // As Stop.
  ~ResultWriter() { Stop(); }

  // Never waits: whoever makes results bounds the backlog.
  void Push(FinishedRequest finished);
  Backlog backlog() const;
  // Waits while the backlog is long, unless StopWaiting was called: whoever
  // ends must not wait for a disk that is full.
  void WaitForRoom();
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
    FinishedRequest finished;
    int64_t bytes;
  };
  void Run();
  // Formats what goes in one transaction; adds what that held to `bytes`.
  std::vector<StoredResult> TakeBatch(int64_t* bytes) ABSL_LOCKS_EXCLUDED(mu_);
  // Commits, again and again if need be; false if the writer stops first.
  bool CommitBatch(const std::vector<StoredResult>& batch)
      ABSL_LOCKS_EXCLUDED(mu_);
  void DoBackground() ABSL_LOCKS_EXCLUDED(mu_);

  const Options options_;
  ResultSink* const sink_;
  mutable Mutex mu_;
  CondVar work_;     // for the thread
  CondVar changed_;  // for WaitForRoom and Flush
  std::deque<Item> waiting_ ABSL_GUARDED_BY(mu_);
  int64_t bytes_ ABSL_GUARDED_BY(mu_) = 0;  // of all that is not done
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
