#pragma once

#include <atomic>
#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "common/machine_profile.h"
#include "runtime/profile/profiler.h"

namespace sluice {

struct ProfileCacheOptions {
  ProfilerOptions machine;
  // Where measured profiles are kept; made if it is not there. "": nowhere.
  std::string cache_dir;
  bool refresh = false;  // measure in any case, and keep that
  // How a machine is measured; tests put something else here.
  std::function<absl::StatusOr<MachineProfile>(
      const ProfilerOptions&, const ProfileProgress&, const std::atomic<bool>*)>
      measure = MeasureMachine;
};

// `disk_dir`, or without one UserCacheDir().
std::string ProfileCacheDir(const std::string& disk_dir);

// The profile of this machine with these options: as it was measured before, if
// nothing that it depends on has changed since (see Fingerprint), else measured
// now, and kept. Its capacities are those of the options.
//
// Of several processes that come at the same time one measures, and the others
// wait for what it finds. A file that cannot be read is measured again, with a
// line in the log, as is one that cannot be written. kCancelled; the errors of
// MeasureMachine.
absl::StatusOr<MachineProfile> CachedProfile(
    const ProfileCacheOptions& options, const ProfileProgress& progress,
    const std::atomic<bool>* cancelled);

// Puts in what is this worker's and not its machine's. A profile without rates
// of a disk stays without a disk tier. kInvalidArgument if `profile` is of a
// device with memory of its own and `machine` has none, or the other way round.
absl::Status SetCapacities(const MachineShare& machine,
                           MachineProfile* profile);

}  // namespace sluice
