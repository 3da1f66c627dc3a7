#pragma once

#include <string>

#include "sluice/v1/jobs.pb.h"

namespace sluice {

// The name of a state, such as "in_progress".
std::string JobStateName(v1::JobState state);

// Whether a job has ended: completed, failed or cancelled.
bool IsTerminal(v1::JobState state);

}  // namespace sluice
