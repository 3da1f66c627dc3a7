#pragma once

#include "absl/time/time.h"

namespace sluice {

// Time limits for workers.
struct WorkerTimeouts {
  absl::Duration heartbeat_interval = absl::Seconds(1);
  absl::Duration heartbeat_timeout = absl::Seconds(10);
  // A worker without progress for this long, while it has work, is broken,
  // unless its work took nearly as long before (see Pace).
  absl::Duration stall_timeout = absl::Seconds(60);
  // A new worker waits this long for others before the plan changes.
  absl::Duration settle_time = absl::Milliseconds(200);
  // The first search for a plan waits this long for workers to measure their
  // links to each other; 0: they are not asked to.
  absl::Duration max_link_time;
  // Workers may take this long to test whether links can be opened.
  absl::Duration max_reach_time = absl::Seconds(60);
  // The wait before the plan after a failed one; it doubles up to a minute.
  absl::Duration first_back_off = absl::Milliseconds(500);
  // A worker that a plan failed for is left out this long; the time doubles up
  // to the maximum.
  static constexpr absl::Duration kFirstLeftOut = absl::Seconds(10);
  static constexpr absl::Duration kMaxLeftOut = absl::Minutes(10);
  // A worker that was lost is shown, and waited for by requests that need it,
  // for this long.
  static constexpr absl::Duration kLostKept = absl::Hours(1);
};

}  // namespace sluice
