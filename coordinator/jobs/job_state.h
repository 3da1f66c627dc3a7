#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/types.h"
#include "sluice/v1/jobs.pb.h"

namespace sluice {

// "in_progress" and the like.
std::string JobStateName(v1::JobState state);

// Ended: completed, failed or cancelled.
bool IsTerminal(v1::JobState state);

// "job_17".
std::string FormatJobId(JobId job);
// Exactly what FormatJobId gives; kNotFound for anything else.
absl::StatusOr<JobId> ParseJobId(absl::string_view text);

// Opaque to clients: where the next page of a list starts.
std::string FormatPageToken(JobId before);
// kInvalidArgument for what FormatPageToken did not make.
absl::StatusOr<JobId> ParsePageToken(absl::string_view token);

}  // namespace sluice
