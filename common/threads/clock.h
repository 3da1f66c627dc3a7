#pragma once

#include "absl/time/time.h"

namespace sluice {

// A source of time, which tests can replace by one that they set. Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  // Wall time, for records and messages.
  virtual absl::Time Now() const = 0;
  // Time since an arbitrary start that never jumps, for intervals and
  // time-outs.
  virtual absl::Duration Monotonic() const = 0;

  // The machine's clock. Lives for the whole program.
  static const Clock* Real();
};

// Seconds of CLOCK_MONOTONIC, for measuring spans on hot paths.
double MonotonicSeconds();

}  // namespace sluice
