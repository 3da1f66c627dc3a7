#pragma once

#include <atomic>
#include <string>

#include "absl/status/statusor.h"
#include "common/machine_profile.h"
#include "runtime/profile/profile_cache.h"
#include "worker/link/link.h"

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

// Makes a profile that of one of `parts` parts of the machine, which have no
// cores in common: so it is a machine of its own by the name of `part`, with
// its part of the disk's rates. The other rates are the part's as measured.
void SetPart(const std::string& part, int parts, MachineProfile* profile);

// Measures a link with the frames and credits of links between stages:
// latency is of a small frame, one way (half of the time until its credit is
// back); bytes per second are of large ones, some in flight at a time, as large
// as fit in `seconds`. Takes about `seconds`, or as long as some 3 MiB take.
// `sender` is of kProbeEpoch and has no other user. `peer` is left empty. The
// errors of LinkSender::Send; kCancelled.
absl::StatusOr<LinkProfile> MeasureLink(LinkSender& sender, double seconds,
                                        const std::atomic<bool>* cancelled);

// Measures a link over this machine's loopback, an upper bound of what the
// software can do. A network may be slower and farther away. kUnavailable if
// the process may not listen on the loopback.
absl::StatusOr<LinkProfile> MeasureLoopbackLink(
    double seconds, const std::atomic<bool>* cancelled);

}  // namespace sluice
