#pragma once

#include "absl/time/time.h"

namespace sluice {

// How long workers are waited for.
struct WorkerTimeouts {
  absl::Duration heartbeat_interval = absl::Seconds(1);
  absl::Duration heartbeat_timeout = absl::Seconds(10);
  // A worker that gets nothing done for so long, while it has work, is broken,
  // unless its work took nearly as long before (see Pace).
  absl::Duration stall_timeout = absl::Seconds(60);
  // A new worker waits so long for others before the plan changes.
  absl::Duration settle_time = absl::Milliseconds(200);
  // How long the first search for a plan waits for workers that measure their
  // links to each other; 0: they are not asked to.
  absl::Duration max_link_time;
  // How long workers may take to say whether links can be opened.
  absl::Duration max_reach_time = absl::Seconds(60);
  // Wait before the plan that follows a failed one; doubles up to a minute.
  absl::Duration first_back_off = absl::Milliseconds(500);
  // For how long a worker is left out that a plan failed for; doubles up to the
  // maximum.
  absl::Duration first_left_out = absl::Seconds(10);
  absl::Duration max_left_out = absl::Minutes(10);
};

}  // namespace sluice
