#pragma once

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "sluice/v1/cluster.pb.h"
#include "sluice/v1/jobs.pb.h"

namespace sluice {

// Writes a job's trace in pieces as one JSON object in Chrome's Trace Event
// Format (complete events), which Perfetto and chrome://tracing open. The
// coordinator is process 1, with a row for the job and rows for the steps of
// each block; workers follow in the order of their names, each with the rows
// "compute" and "send". Times are microseconds since the job was made. An error
// of `write` is returned.
absl::Status WriteTimeline(
    const v1::Job& job, const v1::Trace& trace,
    const std::function<absl::Status(absl::string_view)>& write);

}  // namespace sluice
