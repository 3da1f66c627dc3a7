#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/machine_flags.h"
#include "runtime/profile/profiler.h"

namespace sluice {

// What `flags` give to a worker that has the machine to itself: threads are
// pinned if there are as many as cores. disk_bytes is 0 if nobody says how
// many. Errors name the flag; those of CheckDevice.
absl::StatusOr<MachineShare> ParseMachine(const MachineFlags& flags);

// Makes the directory of the disk tier, if there is one, and what it lies in.
// disk_bytes, if 0, become DefaultDiskSpace. Errors name --disk-dir.
absl::Status PrepareDisk(MachineShare* machine);

// 90 % of what `dir`, which is there, has free or holds of weights already: the
// images in it are charged in full to whoever uses them again. In bytes.
absl::StatusOr<uint64_t> DefaultDiskSpace(const std::string& dir);

}  // namespace sluice
