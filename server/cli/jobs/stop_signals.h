#pragma once

#include <signal.h>

#include <functional>

#include "absl/status/status.h"
#include "common/threads/mutex.h"
#include "common/threads/thread.h"

namespace sluice {

// Takes SIGINT and SIGTERM, so that a command ends in order instead of in the
// middle of a line. The first one asks it to stop; a second one, or one that
// nobody minds, ends the process at once. To be made before other threads
// start, one at a time. Thread-safe.
class StopSignals {
 public:
  StopSignals();
  // The system's answer to the signals holds again.
  ~StopSignals();

  // What the first signal does from now on, on a thread of its own; called now
  // if it has come. Null, as in the beginning: the process ends at once. A stop
  // that runs has returned when this does.
  void OnStop(std::function<void()> stop);

  // The one that came; 0 if none has.
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

// How a command says that `signal` ended it: kCancelled with the message, which
// the program ends with as 128 + signal.
absl::Status StoppedBy(int signal, absl::string_view message);
// The signal of such a status; 0 of any other.
int SignalOf(const absl::Status& status);

}  // namespace sluice
