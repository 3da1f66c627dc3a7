#pragma once

#include <atomic>
#include <string>

#include "absl/status/statusor.h"
#include "common/machine_profile.h"
#include "runtime/profile/profile_cache.h"

namespace sluice {

// MeasureMachine, and what this room adds: a link's rate and latency, and as
// step_seconds what two messages take, for a step goes from the coordinator to
// the first stage, and its tokens come back from the last one. A machine on
// whose loopback nobody may listen gets a remark instead.
absl::StatusOr<MachineProfile> MeasureWorkerMachine(
    const ProfilerOptions& options, const ProfileProgress& progress,
    const std::atomic<bool>* cancelled);

// Profiles of workers with this share: in their disk directory, or else in the
// user's cache, measured by MeasureWorkerMachine.
ProfileCacheOptions ProfileCacheOf(const MachineShare& machine);

// Of a file, for a worker with this share: capacities are the worker's.
// Errors name the file.
absl::StatusOr<MachineProfile> ReadWorkerProfile(const std::string& path,
                                                 const MachineShare& machine);

}  // namespace sluice
