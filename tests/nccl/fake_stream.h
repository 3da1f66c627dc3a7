#pragma once

#include <pthread.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

struct EventState {
  std::mutex mu;
  std::condition_variable changed;
  uint64_t recorded = 0;
  uint64_t reached = 0;

  void Await(uint64_t n) {
    std::unique_lock lock(mu);
    changed.wait(lock, [&] { return reached >= n; });
  }
};

// Does what is put on it in order, on a thread.
class FakeStream {
 public:
  FakeStream() : thread_([this] { Work(); }) {}
  ~FakeStream() {
    Sync();
    {
      std::lock_guard lock(mu_);
      closed_ = true;
      changed_.notify_all();
    }
    thread_.join();
  }
  void Put(std::function<void()> work) {
    std::lock_guard lock(mu_);
    work_.push_back(std::move(work));
    changed_.notify_all();
  }
  void Sync() {
    std::unique_lock lock(mu_);
    changed_.wait(lock, [&] { return work_.empty() && !working_; });
  }

 private:
  void Work() {
    pthread_setname_np(pthread_self(), "fake-stream");  // for who counts them
    std::unique_lock lock(mu_);
    for (;;) {
      changed_.wait(lock, [&] { return !work_.empty() || closed_; });
      if (work_.empty()) return;
      std::function<void()> work = std::move(work_.front());
      work_.pop_front();
      working_ = true;
      lock.unlock();
      work();
      work = nullptr;
      lock.lock();
      working_ = false;
      changed_.notify_all();
    }
  }

  std::mutex mu_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> work_;
  bool working_ = false;
  bool closed_ = false;
  std::thread thread_;  // last
};
