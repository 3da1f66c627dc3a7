#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/machine_flags.h"
#include "runtime/profile/profiler.h"

namespace sluice {

// The share that `flags` give to a worker that has the machine to itself:
// threads are pinned if there are as many as cores. disk_bytes is 0 if no flag
// sets it. Errors name the flag; those of CheckDevice.
absl::StatusOr<MachineShare> ParseMachine(const MachineFlags& flags);

// Makes the directory of the disk tier, if there is one, by MakeDirectory. A
// disk_bytes of 0 becomes DefaultDiskSpace. Errors name --disk-dir.
absl::Status PrepareDisk(MachineShare* machine);

// 90 % of the bytes that are free in `dir`, which exists, or held by packed
// weights in it, which are charged in full to the worker that uses them again.
absl::StatusOr<uint64_t> DefaultDiskSpace(const std::string& dir);

}  // namespace sluice
