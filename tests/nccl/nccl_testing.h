#pragma once

#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "common/threads/mutex.h"
#include "gtest/gtest.h"
#include "tests/nccl/fake_gpu.h"
#include "worker/link/nccl_transport.h"

namespace sluice {

inline std::unique_ptr<PayloadTransport> FakeTransport() {
  auto transport = CreateNcclTransport(
      {.nccl_library = SLUICE_FAKE_GPU, .cuda_library = SLUICE_FAKE_GPU});
  EXPECT_TRUE(transport.ok()) << transport.status();
  return transport.ok() ? *std::move(transport) : nullptr;
}

// Resets the fake, and expects that nothing is left on it. Make it before users
// of the fake, so that it is destroyed after them.
class FakeGpuGuard {
 public:
  FakeGpuGuard() {}  // not defaulted: Clang makes no const one of that
  ~FakeGpuGuard() {
    fake_gpu_mute_errors(0);
    fake_gpu_stall_after(0);
    fake_gpu_fail_init(0);
    fake_gpu_hide_device(0);
    const FakeGpuCounts counts = fake_gpu_counts();
    EXPECT_EQ(counts.comms, 0);
    EXPECT_EQ(counts.streams, 0);
    EXPECT_EQ(counts.events, 0);
    EXPECT_EQ(counts.allocations, 0);
    EXPECT_EQ(counts.contexts, 0);
    EXPECT_EQ(fake_gpu_stalled(), 0);
  }
};

// Waits for reports of threads.
class News {
 public:
  void Tell(absl::Status status) {
    MutexLock lock(&mu_);
    status_ = std::move(status);
    told_ = true;
    changed_.NotifyAll();
  }
  void Add() {
    MutexLock lock(&mu_);
    ++count_;
    changed_.NotifyAll();
  }
  absl::Status AwaitStatus() {
    MutexLock lock(&mu_);
    while (!told_) {
      if (!changed_.WaitFor(&mu_, kLong)) {
        ADD_FAILURE() << "no status came";
        break;
      }
    }
    return status_;
  }
  void AwaitCount(int n) {
    MutexLock lock(&mu_);
    while (count_ < n) {
      if (!changed_.WaitFor(&mu_, kLong)) {
        ADD_FAILURE() << "only " << count_ << " of " << n << " came";
        break;
      }
    }
  }
  int count() {
    MutexLock lock(&mu_);
    return count_;
  }
  bool told() {
    MutexLock lock(&mu_);
    return told_;
  }

 private:
  static constexpr absl::Duration kLong = absl::Seconds(60);  // never reached
  Mutex mu_;
  CondVar changed_;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
  bool told_ ABSL_GUARDED_BY(mu_) = false;
  int count_ ABSL_GUARDED_BY(mu_) = 0;
};

// Waits until a payload is stopped in its middle.
inline void AwaitStalled() {
  while (fake_gpu_stalled() == 0) absl::SleepFor(absl::Milliseconds(1));
}

}  // namespace sluice
