#pragma once

#include "absl/status/statusor.h"
#include "common/host/stop_signals.h"
#include "coordinator/coordinator.h"
#include "coordinator/planning/length_histogram.h"
#include "server/cli/jobs/job_io.h"

namespace sluice {

// Counts the lengths of a file's requests, by a coordinator that has no other
// jobs. Lines that are no requests are told on stderr and left out. An error
// names the file, and says of one without requests why its first line is none.
absl::StatusOr<LengthHistogram> CountInput(const JobFlags& job,
                                           const StopSignals& signals,
                                           Coordinator& coordinator);

}  // namespace sluice
