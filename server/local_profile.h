#pragma once

#include <atomic>
#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/machine_flags.h"
#include "common/machine_profile.h"

namespace sluice {

struct LocalProfileOptions {
  MachineFlags machine;  // the part to be measured
  // If false, an earlier profile of a run with the same options is used.
  bool fresh = true;
  // If false, without an earlier profile nothing is measured: kNotFound.
  bool measure = true;
  // The approximate time of measuring; 0: as long as good results take. With
  // another time, results are not kept.
  double seconds = 0;
  const std::atomic<bool>* stop = nullptr;  // if set: kCancelled
};

// Measures this machine, and caches the profile, named after the host, for
// later workers and commands. `progress` gets what is measured and the share
// done, on another thread. kInvalidArgument names the flag; else the errors of
// MeasureMachine.
absl::StatusOr<MachineProfile> LocalProfile(
    const LocalProfileOptions& options,
    const std::function<void(absl::string_view what, double share)>& progress);

// Gives a profile read from a file the budgets that the flags name, over all
// workers of its machine. kInvalidArgument names a flag that is invalid, or a
// disk's for a machine that has none.
absl::Status SetBudgets(const std::string& host_memory,
                        const std::string& disk_space, MachineProfile* profile);

}  // namespace sluice
