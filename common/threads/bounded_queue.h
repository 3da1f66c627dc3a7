#pragma once

#include <cstddef>
#include <deque>
#include <optional>
#include <utility>

#include "absl/time/time.h"
#include "common/threads/deadline.h"
#include "common/threads/mutex.h"

namespace sluice {

// A FIFO between threads with a fixed capacity. Close() wakes both sides:
// pushes then fail at once, pops drain what is left and then fail. Thread-safe.
template <typename T>
class BoundedQueue {
 public:
  explicit BoundedQueue(size_t capacity) : capacity_(capacity) {}

  // Waits for room. False if the queue was closed; `value` is then dropped.
  bool Push(T value) {
    MutexLock lock(&mu_);
    while (items_.size() >= capacity_ && !closed_) room_.Wait(&mu_);
    if (closed_) return false;
    items_.push_back(std::move(value));
    ready_.NotifyOne();
    return true;
  }

  // Never waits. False if full or closed; `value` is then left as it was.
  bool TryPush(T& value) {
    MutexLock lock(&mu_);
    if (closed_ || items_.size() >= capacity_) return false;
    items_.push_back(std::move(value));
    ready_.NotifyOne();
    return true;
  }

  // Waits for an item. Empty once the queue is closed and drained.
  std::optional<T> Pop() {
    MutexLock lock(&mu_);
    while (items_.empty() && !closed_) ready_.Wait(&mu_);
    return TakeLocked();
  }

  // Pops like Pop, but gives up after `timeout`.
  std::optional<T> PopFor(absl::Duration timeout) {
    const Deadline deadline = Deadline::In(timeout);
    MutexLock lock(&mu_);
    while (items_.empty() && !closed_ && !deadline.passed()) {
      ready_.WaitFor(&mu_, deadline.left());
    }
    return TakeLocked();
  }

  void Close() {
    MutexLock lock(&mu_);
    closed_ = true;
    ready_.NotifyAll();
    room_.NotifyAll();
  }

  bool closed() const {
    MutexLock lock(&mu_);
    return closed_;
  }

  size_t size() const {
    MutexLock lock(&mu_);
    return items_.size();
  }

 private:
  std::optional<T> TakeLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (items_.empty()) return std::nullopt;
    std::optional<T> item(std::move(items_.front()));
    items_.pop_front();
    room_.NotifyOne();
    return item;
  }

  const size_t capacity_;
  mutable Mutex mu_;
  CondVar ready_;
  CondVar room_;
  std::deque<T> items_ ABSL_GUARDED_BY(mu_);
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace sluice
