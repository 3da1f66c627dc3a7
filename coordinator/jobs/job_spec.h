#pragma once

#include <string>

#include "absl/status/status.h"
#include "sluice/v1/jobs.pb.h"

namespace sluice {

// kInvalidArgument names the field of the spec that is wrong, and what it may
// be.
absl::Status ValidateJobSpec(const v1::JobSpec& spec,
                             const std::string& served_model);

}  // namespace sluice
