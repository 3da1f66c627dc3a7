#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace sluice {

// Memory this process may take without swapping or being killed: the kernel's
// MemAvailable or what the cgroup (v1 or v2) leaves, whichever is less. Bytes;
// 0 if neither can be read.
uint64_t AvailableHostMemory();

// The default budget: three quarters of AvailableHostMemory().
uint64_t DefaultHostMemory();

// "8GiB", "500MB", "1.5G" (binary, as is a bare K, M, G, T), "1073741824".
// kInvalidArgument otherwise, and for zero.
absl::StatusOr<uint64_t> ParseByteSize(absl::string_view text);

}  // namespace sluice
