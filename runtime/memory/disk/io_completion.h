#pragma once

#include <atomic>
#include <functional>

#include "absl/status/status.h"
#include "common/threads/mutex.h"

namespace sluice {

// Counts down the parts of something that other threads are doing, and keeps
// the first error among them. Reused without allocation, round after round:
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

  // One part is done. The last one of a round runs the callback, on the
  // calling thread, and wakes the waiters.
  // REQUIRES: parts are expected.
  void Done(const absl::Status& status);

  // Waits until complete; the round's first error, or OK.
  absl::Status Wait();

  // Whether complete. Then what the parts wrote is visible.
  bool ready() const { return pending_.load(std::memory_order_acquire) == 0; }

  // As Wait(), of a completion that is ready: never waits.
  absl::Status status() const;

  // What to run at the end of each round, with the round's status; empty for
  // nothing. It runs when the completion is complete already, so that it, or
  // whoever it wakes, may begin the next round. Waiters may therefore be awake
  // before it has run, and must not take Wait() for leave to destroy this: let
  // the callback say when all is done, or end the engine that runs it first.
  // Set it before the first round.
  void SetCallback(std::function<void(const absl::Status&)> callback);

 private:
  std::function<void(const absl::Status&)> callback_;
  std::atomic<int> pending_{0};
  mutable Mutex mu_;
  CondVar complete_;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sluice
