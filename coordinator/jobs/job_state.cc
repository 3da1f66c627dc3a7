#include "coordinator/jobs/job_state.h"

#include "absl/strings/ascii.h"
#include "absl/strings/strip.h"

namespace sluice {

std::string JobStateName(v1::JobState state) {
  return absl::AsciiStrToLower(
      absl::StripPrefix(v1::JobState_Name(state), "JOB_STATE_"));
}

bool IsTerminal(v1::JobState state) {
  return state == v1::JOB_STATE_COMPLETED || state == v1::JOB_STATE_FAILED ||
         state == v1::JOB_STATE_CANCELLED;
}

}  // namespace sluice
