#include "runtime/memory/disk/io_completion.h"

#include <cassert>
#include <utility>

namespace sluice {

IoCompletion::~IoCompletion() {
  // Who saw ready() may be here before Done() has let go of the lock.
  MutexLock lock(&mu_);
  assert(pending_.load() == 0);
}

void IoCompletion::Expect(int parts) {
  MutexLock lock(&mu_);
  if (pending_.load(std::memory_order_relaxed) == 0) status_ = absl::OkStatus();
  pending_.fetch_add(parts, std::memory_order_release);
}

void IoCompletion::Done(const absl::Status& status) {
  absl::Status result;
  {
    MutexLock lock(&mu_);
    status_.Update(status);
    const int pending = pending_.load(std::memory_order_relaxed);
    assert(pending > 0);
    if (pending > 1) {
      pending_.store(pending - 1, std::memory_order_release);
      return;
    }
    if (callback_ == nullptr) {
      // From here on a waiter may destroy this, as soon as the lock is free.
      complete_.NotifyAll();
      pending_.store(0, std::memory_order_release);
      return;
    }
    result = status_;
    complete_.NotifyAll();
    pending_.store(0, std::memory_order_release);
  }
  callback_(result);
}

absl::Status IoCompletion::Wait() {
  MutexLock lock(&mu_);
  while (pending_.load(std::memory_order_acquire) != 0) complete_.Wait(&mu_);
  return status_;
}

absl::Status IoCompletion::status() const {
  MutexLock lock(&mu_);
  return status_;
}

void IoCompletion::SetCallback(
    std::function<void(const absl::Status&)> callback) {
  callback_ = std::move(callback);
}

}  // namespace sluice
