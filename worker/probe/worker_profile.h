#pragma once

#include <atomic>
#include <string>

#include "absl/status/statusor.h"
#include "common/machine_profile.h"
#include "runtime/profile/profile_cache.h"
#include "worker/worker.h"

namespace sluice {

// What a worker with these options may use, as the profiler wants it; makes the
// disk directory. Errors name the flag.
absl::StatusOr<ProfilerOptions> ProfilerOptionsOf(
    const Worker::Options& options);

// MeasureMachine, and what this room adds: a link's rate and latency, and as
// step_seconds what two messages take, for a step goes from the coordinator to
// the first stage, and its tokens come back from the last one. A machine on
// whose loopback nobody may listen gets a remark instead.
absl::StatusOr<MachineProfile> MeasureWorkerMachine(
    const ProfilerOptions& options, const ProfileProgress& progress,
    const std::atomic<bool>* cancelled);

// Profiles of such workers: in their disk directory, or else in the user's
// cache, measured by MeasureWorkerMachine.
ProfileCacheOptions ProfileCacheOf(const ProfilerOptions& machine);

// Of a file, for a worker with these options: capacities are the worker's.
// Errors name the file.
absl::StatusOr<MachineProfile> ReadWorkerProfile(
    const std::string& path, const ProfilerOptions& machine);

}  // namespace sluice
