#pragma once

#include <string>

#include "absl/status/status.h"
#include "sluice/v1/jobs.pb.h"

namespace sluice {

// Checks a spec; kInvalidArgument names the wrong field and its valid values.
absl::Status ValidateJobSpec(const v1::JobSpec& spec,
                             const std::string& served_model);

}  // namespace sluice
