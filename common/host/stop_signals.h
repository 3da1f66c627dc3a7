#pragma once

#include <signal.h>

#include <atomic>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/host/file_descriptor.h"
#include "common/threads/mutex.h"
#include "common/threads/thread.h"

namespace sluice {

// Takes the signals that ask a program to stop, and remembers the first:
// SIGINT, SIGTERM, and SIGHUP unless it is ignored, as nohup has it. A program
// makes one of these, before other threads start. Whoever waits for anything
// looks here, so that no signal is lost, whatever the program does when it
// comes.
//
// The first signal asks if anybody watches: whoever owns something takes it
// down, and the program ends by itself. After `time`, or at a second signal, or
// at the first if nobody watches, the process ends at once: whatever is at hand
// at the moment, such as a step of minutes, is not waited for. Thread-safe.
class StopSignals {
 public:
  struct Options {
    // What a program that was asked to stop has, before it is ended.
    absl::Duration time = absl::Seconds(2);
    // Whether the program serves until it is told to stop: then it is asked
    // from the beginning, and ended after `time` with exit code 0. Any other,
    // and a server at a second signal, with 128 + signal.
    bool serves = false;
  };
  explicit StopSignals(Options options);
  // Restores the system's handling of the signals.
  ~StopSignals();

  // The first signal; 0 if none has come.
  int signal() const { return signal_; }
  // Whether the program was asked to stop. It stays so.
  bool stopped() const { return stopped_; }
  // The same, for code that takes a flag.
  const std::atomic<bool>* flag() const { return &stopped_; }
  // A descriptor for poll(): readable from the first signal on. Not to be read.
  int fd() const { return stop_fd_.get(); }
  // kCancelled once the program was asked to stop.
  absl::Status Check() const;

  // Waits until the program is asked to stop, at most so long, and returns
  // stopped().
  bool WaitFor(absl::Duration time) const;
  // Waits until `fd` can be read, or has ended. kCancelled once the program is
  // asked to stop.
  absl::Status WaitToRead(int fd) const;
  // Waits until a pipe or a terminal takes up to PIPE_BUF bytes at once, and
  // any other file takes any. kCancelled if the program is asked to stop and
  // the file does not.
  absl::Status WaitToWrite(int fd) const;

  // Changes Options::time. A program that was asked to stop already has so long
  // from now on.
  void SetTime(absl::Duration time);

  // Has SIGHUP call the function from now on, even where nohup has it ignored,
  // instead of asking to stop. It runs on a thread of its own and must not take
  // long.
  void OnHangup(std::function<void()> reload);

  // While one of these lives, the first signal asks instead of ending the
  // process: its owner looks at stopped(), or has a function called.
  class Watch {
   public:
    // `on_stop` is called when the program is asked to stop, at once if it was
    // before; it must not wait, and has returned when the destructor does. May
    // be empty.
    explicit Watch(StopSignals* signals, std::function<void()> on_stop = {});
    ~Watch();
    Watch(const Watch&) = delete;
    Watch& operator=(const Watch&) = delete;

   private:
    friend class StopSignals;
    StopSignals* const signals_;
    const std::function<void()> on_stop_;
  };

  // While one of these lives, a process that is ended at once calls the
  // function before: the last made first, while other threads go on.
  class AtEnd {
   public:
    AtEnd(StopSignals* signals, std::function<void()> at_end);
    ~AtEnd();
    AtEnd(const AtEnd&) = delete;
    AtEnd& operator=(const AtEnd&) = delete;

   private:
    friend class StopSignals;
    StopSignals* const signals_;
    const std::function<void()> at_end_;
  };

 private:
  void Run();
  void OnSignal(int signal);
  [[noreturn]] void End(int code) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  int TimeLeftMs();

  const Options options_;
  const bool ignores_hangups_;
  sigset_t before_;
  FileDescriptor signal_fd_, wake_fd_, stop_fd_;
  std::atomic<bool> closing_{false};
  std::atomic<int> signal_{0};
  std::atomic<bool> stopped_{false};
  Mutex mu_;
  absl::Duration time_ ABSL_GUARDED_BY(mu_);
  absl::Duration time_began_ ABSL_GUARDED_BY(mu_);  // once stopped_
  std::function<void()> on_hangup_ ABSL_GUARDED_BY(mu_);
  std::vector<const Watch*> watches_ ABSL_GUARDED_BY(mu_);
  std::vector<const AtEnd*> at_ends_ ABSL_GUARDED_BY(mu_);
  Thread thread_;
};

}  // namespace sluice
