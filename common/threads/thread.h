#pragma once

#include <functional>
#include <string>
#include <thread>

namespace sluice {

// A named thread that joins when destroyed. The owner must make `body` return
// first (close its queue, set its flag).
class Thread {
 public:
  Thread() = default;
  // `name` shows in debuggers and traces; cut to 15 characters.
  Thread(std::string name, std::function<void()> body);
  Thread(Thread&&) = default;
  Thread& operator=(Thread&& other) noexcept;
  ~Thread() { Join(); }
  // Waits for the body to return. May be called more than once, from the owner
  // only.
  void Join();
  bool joinable() const { return thread_.joinable(); }

 private:
  std::thread thread_;
};

}  // namespace sluice
