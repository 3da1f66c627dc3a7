#pragma once

#include <atomic>
#include <string>

#include "absl/status/statusor.h"
#include "common/machine_profile.h"
#include "runtime/profile/profile_cache.h"

namespace sluice {

// Does MeasureMachine and adds a link's rate and latency, and as step_seconds
// the time of two messages: a step goes from the coordinator to the first
// stage, and its tokens come back from the last one. If the process may not
// listen on the loopback, the profile gets a remark instead.
absl::StatusOr<MachineProfile> MeasureWorkerMachine(
    const ProfilerOptions& options, const ProfileProgress& progress,
    const std::atomic<bool>* cancelled);

// The options for profiles of workers with this share: cached in their disk
// directory, or else in the user's cache, measured by MeasureWorkerMachine.
ProfileCacheOptions ProfileCacheOf(const MachineShare& machine);

// Reads a file's profile for a worker with this share: capacities are the
// worker's. Errors name the file.
absl::StatusOr<MachineProfile> ReadWorkerProfile(const std::string& path,
                                                 const MachineShare& machine);

}  // namespace sluice
