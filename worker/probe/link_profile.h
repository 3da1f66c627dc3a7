#pragma once

#include <atomic>

#include "absl/status/statusor.h"
#include "common/machine_profile.h"
#include "worker/link/link.h"

namespace sluice {

// Measures a link with the frames, credits and gRPC of links between stages:
// latency is of a small frame, one way (half of the time until its credit is
// back); bytes per second are of large ones, some in flight at a time, as large
// as fit in `seconds`. Takes about `seconds`, or as long as some 3 MiB take.
// `sender` is of kProbeEpoch and has no other user. `peer` is left empty. The
// errors of LinkSender::Send; kCancelled.
absl::StatusOr<LinkProfile> MeasureLink(LinkSender& sender, double seconds,
                                        const std::atomic<bool>* cancelled);

// Measures a link over this machine's loopback, an upper bound of what the
// software can do. A network may be slower and farther away. kUnavailable if
// the process may not listen on the loopback.
absl::StatusOr<LinkProfile> MeasureLoopbackLink(
    double seconds, const std::atomic<bool>* cancelled);

}  // namespace sluice
