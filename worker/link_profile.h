#pragma once

#include <atomic>

#include "absl/status/statusor.h"
#include "common/machine_profile.h"

namespace sluice {

// What a link between two stages carries, measured over this machine's loopback
// with the frames, credits and gRPC that links between machines have: what the
// software can do, and so an upper bound. A network may be slower and farther
// away: who knows says so in the profile's `links`. Of no peer in particular;
// latency is of a small frame, one way. Takes about `seconds`. kUnavailable if
// nobody may listen on the loopback; kCancelled.
absl::StatusOr<LinkProfile> MeasureLoopbackLink(
    double seconds, const std::atomic<bool>* cancelled);

}  // namespace sluice
