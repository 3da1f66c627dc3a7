#pragma once

#include <cstddef>
#include <filesystem>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/string_view.h"

namespace sluice {

// Reads a regular file whole. kNotFound if there is none, kInvalidArgument if
// it is larger than `max_bytes`, no regular file or a Git LFS pointer,
// kDataLoss if it cannot be read. Errors name the file.
absl::StatusOr<std::string> ReadSmallFile(const std::filesystem::path& path,
                                          size_t max_bytes);

// Whether a file that begins like this is a Git LFS pointer, which a clone
// without git-lfs leaves in place of a large file (github.com/git-lfs/git-lfs,
// docs/spec.md).
inline bool IsLfsPointer(absl::string_view beginning) {
  return absl::StartsWith(beginning, "version https://git-lfs");
}
constexpr char kLfsPointerAdvice[] =
    "a Git LFS pointer, not the file itself; run `git lfs pull` in the model's "
    "directory";

}  // namespace sluice
