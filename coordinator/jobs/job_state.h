#pragma once

#include <string>

#include "sluice/v1/jobs.pb.h"

namespace sluice {

// "in_progress" and the like.
std::string JobStateName(v1::JobState state);

// Ended: completed, failed or cancelled.
bool IsTerminal(v1::JobState state);

}  // namespace sluice
