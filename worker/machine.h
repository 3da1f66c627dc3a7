#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace sluice {

// Makes `dir`, and what it lies in, if it is not there. Errors name it.
absl::Status MakeDiskDir(const std::string& dir);

// 90 % of what `dir` has free; makes it if it is not there. Errors name it.
absl::StatusOr<uint64_t> DefaultDiskSpace(const std::string& dir);

}  // namespace sluice
