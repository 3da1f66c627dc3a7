#include "runtime/memory/compute_pool.h"

#include "absl/strings/str_cat.h"
#include "common/threads/spin_pause.h"
#include "runtime/memory/cpu_topology.h"

namespace sluice {
namespace {

// About 20 microseconds: longer than the gaps between the loops of a step, far
// shorter than a scheduler's time slice.
constexpr int kSpins = 400;

}  // namespace

ComputePool::ComputePool(int num_threads, const std::vector<int>& cores,
                         WorkMarks* marks)
    : num_threads_(num_threads < 1 ? 1 : num_threads), marks_(marks) {
  threads_.reserve(num_threads_ - 1);
  for (int i = 1; i < num_threads_; ++i) {
    threads_.emplace_back(
        absl::StrCat("compute-", i),
        [this, i, core = i < static_cast<int>(cores.size()) ? cores[i] : -1] {
          if (core >= 0) BindThisThread({&core, 1});
          WorkerLoop(i);
        });
  }
}

ComputePool::~ComputePool() {
  {
    MutexLock lock(&mu_);
    stop_.store(true);
    work_.NotifyAll();
  }
  threads_.clear();
}

bool ComputePool::TakeTask(uint32_t* remaining) {
  uint64_t ticket = ticket_.load(std::memory_order_acquire);
  while (static_cast<uint32_t>(ticket) != 0) {
    if (ticket_.compare_exchange_weak(ticket, ticket - 1,
                                      std::memory_order_acq_rel)) {
      *remaining = static_cast<uint32_t>(ticket);
      return true;
    }
  }
  return false;
}

void ComputePool::RunTasks(int thread) {
  uint32_t remaining;
  while (TakeTask(&remaining)) {
    const int32_t total = num_tasks_;
    (*body_)(total - static_cast<int32_t>(remaining), thread);
    AddMark(marks_);
    // The caller may return from here on, so the loop is not accessed after.
    if (done_.fetch_add(1) + 1 == total && caller_waits_.load()) {
      MutexLock lock(&mu_);
      finished_.NotifyAll();
    }
  }
}

void ComputePool::WorkerLoop(int thread) {
  while (true) {
    RunTasks(thread);
    bool found = false;
    for (int spin = 0; spin < kSpins && !found; ++spin) {
      SpinPause();
      found =
          static_cast<uint32_t>(ticket_.load(std::memory_order_relaxed)) != 0;
    }
    if (found) continue;
    MutexLock lock(&mu_);
    sleepers_.fetch_add(1);
    // The ticket is read after sleepers_ is raised, and ParallelFor reads
    // sleepers_ after it has set the ticket: one of the two sees the other.
    while (static_cast<uint32_t>(ticket_.load()) == 0 && !stop_.load()) {
      work_.Wait(&mu_);
    }
    sleepers_.fetch_sub(1);
    if (stop_.load()) return;
  }
}

void ComputePool::ParallelFor(int num_tasks, Body body) {
  if (num_tasks <= 0) return;
  if (num_tasks == 1 || num_threads_ == 1) {
    for (int i = 0; i < num_tasks; ++i) {
      body(i, 0);
      AddMark(marks_);
    }
    return;
  }
  body_ = &body;
  num_tasks_ = num_tasks;
  done_.store(0);
  const uint64_t generation = (ticket_.load() >> 32) + 1;
  ticket_.store(generation << 32 | static_cast<uint32_t>(num_tasks));
  if (sleepers_.load() > 0) {
    MutexLock lock(&mu_);
    work_.NotifyAll();
  }
  RunTasks(0);
  for (int spin = 0; spin < kSpins; ++spin) {
    if (done_.load() == num_tasks) return;
    SpinPause();
  }
  MutexLock lock(&mu_);
  caller_waits_.store(true);
  while (done_.load() != num_tasks) finished_.Wait(&mu_);
  caller_waits_.store(false);
}

}  // namespace sluice
