#pragma once

#include <atomic>

#include "absl/status/status.h"
#include "common/threads/mutex.h"

namespace sluice {

// Counts down the parts of work that other threads do, and keeps their first
// error. Reused without allocation, round after round:
//
//   IoCompletion done;
//   done.Expect(2);
//   engine->Read(file, 0, a, &done);
//   engine->Read(file, 4096, b, &done);
//   absl::Status status = done.Wait();
//
// Complete until the first Expect(). Must outlive its round. Thread-safe.
class IoCompletion {
 public:
  IoCompletion() = default;
  // REQUIRES: complete.
  ~IoCompletion();
  IoCompletion(const IoCompletion&) = delete;
  IoCompletion& operator=(const IoCompletion&) = delete;

  // Adds `parts` to be waited for. If complete, this begins a new round and
  // forgets the last one's error. Announce all parts of a round before one of
  // them can be done, or it may be complete in between.
  void Expect(int parts);

  // Called when a part is done. The last one of a round wakes the waiters.
  // REQUIRES: parts are expected.
  void Done(const absl::Status& status);

  // Waits until complete; returns the round's first error, or OK.
  absl::Status Wait();

  // Whether all parts are done. If so, their writes are visible.
  bool ready() const { return pending_.load(std::memory_order_acquire) == 0; }

  // Like Wait(), but never waits. REQUIRES: ready().
  absl::Status status() const;

 private:
  std::atomic<int> pending_{0};
  mutable Mutex mu_;
  CondVar complete_;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sluice
