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

// The consumer of results, called on the writer's thread only.
class ResultSink {
 public:
  virtual ~ResultSink() = default;
  virtual StoredResult Format(FinishedLine finished) = 0;
  // Stores all results or, if it fails, none: the call is then repeated.
  virtual absl::Status Commit(absl::Span<const StoredResult> results) = 0;
  // Does one piece of background work; returns false when there is none. If it
  // fails it is tried again later; results do not wait for that.
  virtual absl::StatusOr<bool> DoBackgroundWork() = 0;
  // Called when some results were stored, or given up: the backlog is smaller.
  virtual void OnWritten() {}
};

// The thread that writes results to the store: all waiting ones go in one
// transaction, so that one fsync serves many. Between them it does background
// work (cancelling, purging) a piece at a time. When the store fails, results
// stay in memory and are tried again, until it works or the process stops.
// Thread-safe.
class ResultWriter {
 public:
  struct Options {
    // WaitForRoom waits while this many results wait, or hold 64 MiB.
    size_t max_waiting = 8192;
    // The maximum of results in one transaction. As a line, a result with
    // logprobs is ten times as large as in memory.
    size_t max_batch = 4096;
    int64_t max_batch_bytes = 4 << 20;
    absl::Duration first_retry = absl::Milliseconds(100);
    absl::Duration last_retry = absl::Seconds(5);
  };
  // `sink` must outlive the writer.
  ResultWriter(const Options& options, ResultSink* sink);
  // Stops the writer, as Stop does.
  ~ResultWriter() { Stop(); }

  // Never waits: the caller bounds the backlog.
  void Push(FinishedLine finished);
  Backlog backlog() const;
  // Waits while the backlog is long, unless StopWaiting was called: shutdown
  // must not wait for a full disk.
  void WaitForRoom();
  void StopWaiting();
  // Tells the thread that there is background work.
  void Wake();
  // Returns when everything pushed before is committed, or could not be.
  void Flush();
  // Commits waiting results, with one try if the store fails, and ends the
  // thread. Nothing may be pushed afterwards.
  void Stop();

 private:
  struct Item {
    FinishedLine finished;
    int64_t bytes;
  };
  void Run();
  // Formats one transaction's results; adds their bytes in memory to `bytes`.
  std::vector<StoredResult> TakeBatch(int64_t* bytes) ABSL_LOCKS_EXCLUDED(mu_);
  // Commits, repeatedly if it fails; returns false if the writer stops first.
  bool CommitBatch(const std::vector<StoredResult>& batch)
      ABSL_LOCKS_EXCLUDED(mu_);
  void DoBackground() ABSL_LOCKS_EXCLUDED(mu_);

  const Options options_;
  ResultSink* const sink_;
  mutable Mutex mu_;
  CondVar work_;     // wakes the thread
  CondVar changed_;  // wakes WaitForRoom and Flush
  std::deque<Item> waiting_ ABSL_GUARDED_BY(mu_);
  int64_t bytes_ ABSL_GUARDED_BY(mu_) = 0;  // of all results not done yet
  uint64_t pushed_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t done_ ABSL_GUARDED_BY(mu_) = 0;  // committed or given up
  uint64_t failures_ ABSL_GUARDED_BY(mu_) = 0;
  bool background_ ABSL_GUARDED_BY(mu_) = true;
  // The time at which failed background work is due again.
  Deadline background_at_ ABSL_GUARDED_BY(mu_) = Deadline::Never();
  bool waits_ ABSL_GUARDED_BY(mu_) = true;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  Thread thread_;
};

}  // namespace sluice
