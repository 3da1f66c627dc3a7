#pragma once

#include <functional>

#include "absl/time/time.h"
#include "common/threads/mutex.h"
#include "common/threads/thread.h"

namespace sluice {

// Calls a function at once, and then regularly on a thread of its own, which
// may wait for a slow disk without delaying others.
class RegularUpdate {
 public:
  RegularUpdate(std::function<void()> update, absl::Duration interval);
  // Waits for a call under way.
  ~RegularUpdate();

 private:
  void Run();

  const std::function<void()> update_;
  const absl::Duration interval_;
  Mutex mu_;
  CondVar changed_;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  Thread thread_;
};

}  // namespace sluice
