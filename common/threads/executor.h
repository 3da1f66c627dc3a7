#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/threads/mutex.h"
#include "common/threads/thread.h"

namespace sluice {

// A few threads that run tasks in the order in which they come, for work that
// may wait (for a disk, a lock) on behalf of threads that may not (gRPC's).
// Thread-safe.
class Executor {
 public:
  // `name` shows in debuggers and traces.
  Executor(const std::string& name, int threads);
  // Runs the waiting tasks and those that they add. Nothing else may add tasks
  // any more.
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  void Run(std::function<void()> task);
  // Tasks that no thread has begun.
  size_t waiting() const;

 private:
  void Work();
  void Stop();

  mutable Mutex mu_;
  CondVar changed_;
  std::deque<std::function<void()>> tasks_ ABSL_GUARDED_BY(mu_);
  size_t running_ ABSL_GUARDED_BY(mu_) = 0;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<Thread> threads_;
};

// Tasks that run on an executor one after another, in the order in which they
// come. The executor must outlive them. Thread-safe.
class Strand {
 public:
  explicit Strand(Executor* executor) : state_(new State{executor}) {}
  void Run(std::function<void()> task);

 private:
  // Shared with tasks, which may hold the last reference to the owner.
  struct State {
    explicit State(Executor* executor) : executor(executor) {}
    Executor* const executor;
    Mutex mu;
    std::deque<std::function<void()>> tasks ABSL_GUARDED_BY(mu);
    bool active ABSL_GUARDED_BY(mu) = false;
  };
  static void Work(const std::shared_ptr<State>& state);
  std::shared_ptr<State> state_;
};

}  // namespace sluice
