#pragma once

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/machine_flags.h"
#include "common/machine_profile.h"

namespace sluice {

struct LocalProfileOptions {
  MachineFlags machine;  // what of it is to be measured
  // Off: what a worker or command of the same options measured before will do.
  bool fresh = true;
  // That measuring takes, about; 0: as long as it takes to be good. What was
  // measured in another time is not kept.
  double seconds = 0;
};

// Measures this machine, and keeps what was found for workers and commands that
// start here later. Named after the host. `progress` gets what is measured and
// how much is done, on another thread. kInvalidArgument names the flag; else
// the errors of MeasureMachine.
absl::StatusOr<MachineProfile> LocalProfile(
    const LocalProfileOptions& options,
    const std::function<void(absl::string_view what, double share)>& progress);

// Gives a profile read from a file the budgets that the flags name, over all
// workers of its machine. kInvalidArgument names the flag: one that makes no
// sense, a disk's for a machine that has none.
absl::Status SetBudgets(const std::string& host_memory,
                        const std::string& disk_space, MachineProfile* profile);

}  // namespace sluice
