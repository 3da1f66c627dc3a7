#pragma once

#include <cstddef>
#include <filesystem>
#include <string>

#include "absl/status/statusor.h"

namespace sluice {

// Reads a regular file whole. kNotFound if there is none, kInvalidArgument if
// it is larger than `max_bytes`, no regular file or a Git LFS pointer,
// kDataLoss if it cannot be read. Errors name the file.
absl::StatusOr<std::string> ReadSmallFile(const std::filesystem::path& path,
                                          size_t max_bytes);

}  // namespace sluice
