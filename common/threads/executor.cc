#include "common/threads/executor.h"

#include <utility>

namespace sluice {

Executor::Executor(const std::string& name, int threads) {
  try {
    for (int i = 0; i < threads; ++i) {
      threads_.emplace_back(name, [this] { Work(); });
    }
  } catch (...) {  // the system gives no more threads
    Stop();
    throw;
  }
}

Executor::~Executor() { Stop(); }

void Executor::Stop() {
  {
    MutexLock lock(&mu_);
    stop_ = true;
    changed_.NotifyAll();
  }
  threads_.clear();  // joins
}

void Executor::Run(std::function<void()> task) {
  MutexLock lock(&mu_);
  tasks_.push_back(std::move(task));
  changed_.NotifyOne();
}

size_t Executor::waiting() const {
  MutexLock lock(&mu_);
  return tasks_.size();
}

void Executor::Work() {
  while (true) {
    std::function<void()> task;
    {
      MutexLock lock(&mu_);
      // A task that runs may add more.
      while (tasks_.empty() && !(stop_ && running_ == 0)) changed_.Wait(&mu_);
      if (tasks_.empty()) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
      ++running_;
    }
    task();
    task =
        nullptr;  // while this still counts as running: its end may add tasks
    MutexLock lock(&mu_);
    --running_;
    if (stop_) changed_.NotifyAll();
  }
}

void Strand::Run(std::function<void()> task) {
  {
    MutexLock lock(&state_->mu);
    state_->tasks.push_back(std::move(task));
    if (state_->active) return;
    state_->active = true;
  }
  state_->executor->Run([state = state_] { Work(state); });
}

void Strand::Work(const std::shared_ptr<State>& state) {
  std::function<void()> task;
  {
    MutexLock lock(&state->mu);
    task = std::move(state->tasks.front());
    state->tasks.pop_front();
  }
  task();
  task = nullptr;
  {
    MutexLock lock(&state->mu);
    if (state->tasks.empty()) {
      state->active = false;
      return;
    }
  }
  // Tasks of others run in between.
  state->executor->Run([state] { Work(state); });
}

}  // namespace sluice
