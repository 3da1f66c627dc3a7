#pragma once

#include <signal.h>

#include <functional>

#include "absl/status/status.h"
#include "common/threads/mutex.h"
#include "common/threads/thread.h"

namespace sluice {

// Handles SIGINT and SIGTERM, so that a command ends in order instead of in the
// middle of a line. The first one asks it to stop; a second one, or one without
// a stop function, ends the process at once. Must be made before other threads
// start, one at a time. Thread-safe.
class StopSignals {
 public:
  StopSignals();
  // Restores the system's handling of the signals.
  ~StopSignals();

  // Sets the function that the first signal calls from now on, on a thread of
  // its own; it is called now if a signal has come. Null, as in the beginning:
  // the process ends at once. A stop that runs has returned when this does.
  void OnStop(std::function<void()> stop);

  // The signal that came; 0 if none has.
  int signal() const;

 private:
  void Run();

  sigset_t before_;
  int signal_fd_ = -1;
  int close_fd_ = -1;
  mutable Mutex mu_;
  CondVar changed_;
  std::function<void()> stop_ ABSL_GUARDED_BY(mu_);
  int signal_ ABSL_GUARDED_BY(mu_) = 0;
  bool running_ ABSL_GUARDED_BY(mu_) = false;
  Thread stopper_ ABSL_GUARDED_BY(mu_);
  Thread thread_;
};

// The status of a command that `signal` ended: kCancelled with the message; the
// program's exit code is 128 + signal.
absl::Status StoppedBy(int signal, absl::string_view message);
// The signal of a StoppedBy status; 0 for any other status.
int SignalOf(const absl::Status& status);

}  // namespace sluice
