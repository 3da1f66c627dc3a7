#pragma once

#include <filesystem>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace sluice {

// Has a file of these contents take the place of `path`, by a rename once all
// is on disk: whoever reads, also after a crash, finds the old file or the new
// one whole, whatever other writers do. Errors name the file;
// kFailedPrecondition: a directory is in the way, or a file in place of one.
absl::Status ReplaceFile(const std::filesystem::path& path,
                         absl::string_view contents);

// Makes a directory unless it is there, in one that is there: no path of a slip
// of the pen is made. Errors begin with `what`, as "--disk-dir", and name the
// path; kInvalidArgument: the directory for it is missing.
absl::Status MakeDirectory(absl::string_view what,
                           const std::filesystem::path& dir);

// Brings the names of a directory's files to disk. Errors name the directory.
absl::Status SyncDirectory(const std::filesystem::path& dir);

}  // namespace sluice
