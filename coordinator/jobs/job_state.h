#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/types.h"
#include "sluice/v1/jobs.pb.h"

namespace sluice {

// The name of a state, such as "in_progress".
std::string JobStateName(v1::JobState state);

// Whether a job has ended: completed, failed or cancelled.
bool IsTerminal(v1::JobState state);

// Formats an id as "job_17".
std::string FormatJobId(JobId job);
// The inverse of FormatJobId; kNotFound for any other text.
absl::StatusOr<JobId> ParseJobId(absl::string_view text);

// Formats the start of the next page of a list, opaque to clients.
std::string FormatPageToken(JobId before);
// The inverse of FormatPageToken; kInvalidArgument for any other text.
absl::StatusOr<JobId> ParsePageToken(absl::string_view token);

// Checks a spec; kInvalidArgument names the wrong field and its valid values.
absl::Status ValidateJobSpec(const v1::JobSpec& spec,
                             const std::string& served_model);

}  // namespace sluice
