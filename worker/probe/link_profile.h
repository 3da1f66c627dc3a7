#pragma once

#include <atomic>

#include "absl/status/statusor.h"
#include "common/machine_profile.h"
#include "worker/link/link.h"

namespace sluice {

// What a link carries, with the frames, credits and gRPC that links between
// stages have: latency is of a small frame, one way (half of the time until its
// credit is back); bytes per second are of large ones, some under way at a
// time, as large as `seconds` have room for. Takes about `seconds`, or as long
// as some 3 MiB take. `sender` is of kProbeEpoch, and used by nobody else.
// `peer` is left empty. The errors of LinkSender::Send; kCancelled.
absl::StatusOr<LinkProfile> MeasureLink(LinkSender& sender, double seconds,
                                        const std::atomic<bool>* cancelled);

// The same over this machine's loopback: what the software can do, and so an
// upper bound. A network may be slower and farther away. kUnavailable if nobody
// may listen on the loopback.
absl::StatusOr<LinkProfile> MeasureLoopbackLink(
    double seconds, const std::atomic<bool>* cancelled);

}  // namespace sluice
