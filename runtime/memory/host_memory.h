#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace sluice {

// What is left of the memory that control groups give a process: the minimum
// along its path and at the root, of both versions; nullopt if none limits it.
// `groups` is the text of /proc/self/cgroup; `root` is their mount point.
// Bytes.
std::optional<uint64_t> CgroupMemoryLeft(absl::string_view groups,
                                         const std::string& root);

// Memory this process may take without swapping or being killed: the kernel's
// MemAvailable or CgroupMemoryLeft(), whichever is less. Bytes; 0 if neither
// can be read.
uint64_t AvailableHostMemory();

// The peak memory of this process in RAM, its code included (the kernel's
// VmHWM). Bytes; 0 if it can't be read.
uint64_t PeakResidentMemory();

// The default budget: three quarters of AvailableHostMemory().
uint64_t DefaultHostMemory();

// The budget that --host-memory `text` asks for, DefaultHostMemory() for "".
// Logs a warning if the machine has less. Errors are ParseByteSize's, naming
// the flag.
absl::StatusOr<uint64_t> ParseHostMemory(const std::string& text,
                                         bool warn = true);

// The machine's memory in bytes; 0 if it can't be read.
uint64_t MachineMemory();

}  // namespace sluice
