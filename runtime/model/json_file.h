#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace sluice {

// Parses a JSON object. kInvalidArgument with the position for text that is not
// JSON, is no object or is nested more than 64 deep (so that no consumer that
// recurses can be made to overflow its stack).
absl::StatusOr<nlohmann::json> ParseJsonObject(absl::string_view text);

// Does ParseJsonObject of a file of at most 64 MiB; errors name the file.
absl::StatusOr<nlohmann::json> ReadJsonObject(
    const std::filesystem::path& path);

// Does the same of a file that holds a JSON array.
absl::StatusOr<nlohmann::json> ReadJsonArray(const std::filesystem::path& path);

}  // namespace sluice
