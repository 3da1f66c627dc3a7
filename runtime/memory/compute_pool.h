#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "common/threads/mutex.h"
#include "common/threads/thread.h"
#include "common/threads/work_marks.h"

namespace sluice {

// Fork and join over a fixed set of threads, the caller included. Made for
// short, frequent loops: threads spin for some microseconds before they sleep,
// so that the loops of one step follow each other without system calls, and an
// idle pool costs nothing.
//
// A thread that is late (descheduled, or still waking up) is not waited for,
// unless it holds a task: with more threads than cores the others do its share.
class ComputePool {
 public:
  // `num_threads` >= 1, the calling thread included. `cores`: to which each
  // thread is pinned, except the caller; or empty. `marks`: gets one for each
  // finished task; or null. Outlives the pool.
  explicit ComputePool(int num_threads, const std::vector<int>& cores = {},
                       WorkMarks* marks = nullptr);
  ~ComputePool();
  ComputePool(const ComputePool&) = delete;
  ComputePool& operator=(const ComputePool&) = delete;

  int num_threads() const { return num_threads_; }

  // Calls body(task, thread) for each task in [0, num_tasks), thread in [0,
  // num_threads()); tasks are handed out in order. Returns when all are done.
  // One caller at a time; not from within a body.
  using Body = absl::FunctionRef<void(int task, int thread)>;
  void ParallelFor(int num_tasks, Body body);

 private:
  void WorkerLoop(int thread);
  // Takes a task of the current loop; returns false if none is left.
  bool TakeTask(uint32_t* remaining);
  void RunTasks(int thread);

  const int num_threads_;
  WorkMarks* const marks_;

  // The upper half is the generation of the loop, the lower the tasks not yet
  // taken. The generation tells a thread with a task that the fields below
  // belong to it: they change only when all tasks are done.
  alignas(64) std::atomic<uint64_t> ticket_{0};
  alignas(64) std::atomic<int32_t> done_{0};
  const Body* body_ = nullptr;
  int32_t num_tasks_ = 0;

  alignas(64) std::atomic<int32_t> sleepers_{0};
  std::atomic<bool> caller_waits_{false};
  std::atomic<bool> stop_{false};
  Mutex mu_;
  CondVar work_;
  CondVar finished_;
  std::vector<Thread> threads_;
};

}  // namespace sluice
