#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"

namespace sluice {

// A std::mutex with Clang's thread-safety annotations.
//
// Not absl::Mutex: distributions ship abseil built without ThreadSanitizer,
// which then cannot see that absl::Mutex orders anything and reports every
// lock-protected access as a race. It understands pthread mutexes.
class ABSL_LOCKABLE Mutex {
 public:
  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { mu_.lock(); }
  void Unlock() ABSL_UNLOCK_FUNCTION() { mu_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mu_;
};

class ABSL_SCOPED_LOCKABLE MutexLock {
 public:
  explicit MutexLock(Mutex* mu) ABSL_EXCLUSIVE_LOCK_FUNCTION(mu) : mu_(mu) {
    mu_->Lock();
  }
  ~MutexLock() ABSL_UNLOCK_FUNCTION() { mu_->Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex* mu_;
};

// Condition variable for Mutex. Callers loop on their condition: wake-ups may
// be spurious.
class CondVar {
 public:
  void Wait(Mutex* mu) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    std::unique_lock<std::mutex> lock(mu->mu_, std::adopt_lock);
    cv_.wait(lock);
    lock.release();
  }
  // Returns false if `timeout`, which may be infinite, passed without a
  // notification.
  bool WaitFor(Mutex* mu, absl::Duration timeout)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    std::unique_lock<std::mutex> lock(mu->mu_, std::adopt_lock);
    // Beyond an hour the deadline could overflow the clock: wake spuriously.
    const bool notified =
        cv_.wait_for(lock, absl::ToChronoMicroseconds(
                               std::min(timeout, kLongestWait))) ==
        std::cv_status::no_timeout;
    lock.release();
    return notified || timeout > kLongestWait;
  }
  void NotifyOne() { cv_.notify_one(); }
  void NotifyAll() { cv_.notify_all(); }

 private:
  static constexpr absl::Duration kLongestWait = absl::Hours(1);
  std::condition_variable cv_;
};

}  // namespace sluice
