#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/host/stop_signals.h"

namespace sluice {

// A process to be kept alive.
struct SupervisedProcess {
  std::string name;                    // before each line of its output
  std::vector<std::string> arguments;  // the program's name excluded
  std::vector<int> cpus;               // to be bound to; empty: all
};

struct SupervisorOptions {
  std::string program = "/proc/self/exe";
  // Variables of this process's environment that the others do not get.
  std::vector<std::string> without;
  // Before a process is started again; twice as long each time that it did not
  // live for `steady`.
  absl::Duration first_back_off = absl::Seconds(1);
  absl::Duration max_back_off = absl::Minutes(1);
  absl::Duration steady = absl::Minutes(1);
  int usage_exit = 2;  // the status of a process that refuses its arguments
  // To end after a signal, for processes whose own time is shorter; then they
  // are killed.
  absl::Duration time_to_end = absl::Milliseconds(2500);
};

// Starts the processes, each in a process group of its own, and passes their
// standard output and error on by lines, with their names. Starts those again
// that end with an error or by a signal. Ends when all have ended without an
// error: a first signal is passed on as SIGTERM, and a second kills them.
//
// OK: told to end, or all ended so. kInvalidArgument: one refused its
// arguments; kInternal: no process can be started at all. Then the others were
// ended, too. REQUIRES: no other thread of this process waits for children.
absl::Status Supervise(const std::vector<SupervisedProcess>& processes,
                       const SupervisorOptions& options, StopSignals* signals);

}  // namespace sluice
