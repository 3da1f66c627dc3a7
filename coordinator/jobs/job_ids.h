#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/types.h"

namespace sluice {

// Formats an id as "job_17".
std::string FormatJobId(JobId job);
// The inverse of FormatJobId; kNotFound for any other text.
absl::StatusOr<JobId> ParseJobId(absl::string_view text);

// Formats the start of the next page of a list, opaque to clients.
std::string FormatPageToken(JobId before);
// The inverse of FormatPageToken; kInvalidArgument for any other text.
absl::StatusOr<JobId> ParsePageToken(absl::string_view token);

}  // namespace sluice
