#pragma once

#include <cstdint>
#include <deque>

#include "absl/time/time.h"

namespace sluice {

// The rate of events that come in lumps, as tokens do with each step: many
// lumps a second, or one a minute. Thread-compatible.
class EventRate {
 public:
  // Counts events at `now`, a monotonic time that never goes back.
  void Add(absl::Duration now, int64_t count);
  // Forgets all: what comes next has nothing to do with what was.
  void Clear() { lumps_.clear(); }
  // Returns the events a second over the last seconds, or, if they come less
  // often, over the last lumps; less when the next lump is overdue. 0 as long
  // as there was only one.
  double PerSecond(absl::Duration now) const;

 private:
  // Events that came within a short time of each other.
  struct Lump {
    absl::Duration begin, end;
    int64_t count = 0;
  };
  std::deque<Lump> lumps_;
};

}  // namespace sluice
