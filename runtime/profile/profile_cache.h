#pragma once

#include <atomic>
#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "common/machine_profile.h"
#include "runtime/profile/profiler.h"

namespace sluice {

// What the progress is told while another process measures.
inline constexpr char kAwaitsMeasurement[] = "another process measures";

struct ProfileCacheOptions {
  ProfilerOptions machine;
  // The directory of measured profiles; made if it does not exist. "": none.
  std::string cache_dir;
  bool refresh = false;  // measure in any case, and keep the result
  // The function that measures a machine; tests replace it.
  std::function<absl::StatusOr<MachineProfile>(
      const ProfilerOptions&, const ProfileProgress&, const std::atomic<bool>*)>
      measure = MeasureMachine;
};

// Returns `disk_dir`, or UserCacheDir() if that is "".
std::string ProfileCacheDir(const std::string& disk_dir);

// Returns this machine's profile with these options: the earlier measurement,
// if nothing that it depends on has changed since (see Fingerprint), else a new
// one, which is kept: for an hour if other work disturbed it. Its capacities
// are those of the options.
//
// If several processes call this at the same time, one measures, and the others
// wait for its result. An unreadable file is logged and measured again; one
// that cannot be written is logged. kCancelled; the errors of MeasureMachine.
absl::StatusOr<MachineProfile> CachedProfile(
    const ProfileCacheOptions& options, const ProfileProgress& progress,
    const std::atomic<bool>* cancelled);

// Sets this worker's capacities. A profile without disk rates stays without a
// disk tier. kInvalidArgument if `profile` is of a device with memory of its
// own and `machine` has none, or the other way round.
absl::Status SetCapacities(const MachineShare& machine,
                           MachineProfile* profile);

}  // namespace sluice
