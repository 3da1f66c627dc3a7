#include "runtime/memory/disk/io_completion.h"

#include <cassert>

namespace sluice {

IoCompletion::~IoCompletion() {
  // A thread that saw ready() may get here before Done() has released the lock.
  MutexLock lock(&mu_);
  assert(pending_.load() == 0);
}

void IoCompletion::Expect(int parts) {
  MutexLock lock(&mu_);
  if (pending_.load(std::memory_order_relaxed) == 0) status_ = absl::OkStatus();
  pending_.fetch_add(parts, std::memory_order_release);
}

void IoCompletion::Done(const absl::Status& status) {
  MutexLock lock(&mu_);
  status_.Update(status);
  const int pending = pending_.load(std::memory_order_relaxed);
  assert(pending > 0);
  // After the last part a waiter may destroy this, as soon as the lock is free.
  if (pending == 1) complete_.NotifyAll();
  pending_.store(pending - 1, std::memory_order_release);
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

}  // namespace sluice
