#pragma once

#include <filesystem>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/gguf/gguf_metadata.h"

namespace sluice {

// Whether `path` is a file that is meant to be GGUF: by its name, or by its
// first bytes.
bool IsGgufFile(const std::filesystem::path& path);

// Returns the files of a model of which `path` names one, in order: those of
// its directory whose names differ in the number only, if its name ends in
// -00002-of-00003.gguf, or else the file alone. kInvalidArgument names a part
// that is missing.
absl::StatusOr<std::vector<std::filesystem::path>> GgufParts(
    const std::filesystem::path& path);

// Reads the metadata of a model, which its first part has. Errors are those of
// GgufParts and ReadGgufHeader, and name the file.
absl::StatusOr<GgufMetadata> ReadGgufMetadata(
    const std::filesystem::path& path);

}  // namespace sluice
