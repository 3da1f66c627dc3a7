#pragma once

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"

namespace sluice {

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
