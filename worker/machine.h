#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace sluice {

// Makes `dir`, and what it lies in, if it is not there. Errors name it.
absl::Status MakeDiskDir(const std::string& dir);

// 90 % of what `dir` has free or holds of weights already: the images in it
// are charged in full to whoever uses them again. In bytes; makes the directory
// if it is not there. Errors name it.
absl::StatusOr<uint64_t> DefaultDiskSpace(const std::string& dir);

}  // namespace sluice
