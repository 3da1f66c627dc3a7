#pragma once

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"

namespace sluice {

// A file that begins like this only says where Git LFS has the real one: what a
// clone without git-lfs leaves of large files
// (github.com/git-lfs/git-lfs, docs/spec.md).
inline bool IsLfsPointer(absl::string_view beginning) {
  return absl::StartsWith(beginning, "version https://git-lfs");
}
constexpr char kLfsPointerAdvice[] =
    "a Git LFS pointer, not the file itself; run `git lfs pull` in the model's "
    "directory";

}  // namespace sluice
