#pragma once

#include "absl/time/time.h"

namespace sluice {

// Divides wall time equally between the pipelines that have steps in flight, so
// that what they count sums to the time in which at least one has. Times are of
// a monotonic clock. Thread-compatible.
class BusyTime {
 public:
  // A pipeline has steps in flight from now on, or none any more.
  void Begin(absl::Duration now) {
    Pass(now);
    ++busy_;
  }
  void End(absl::Duration now) {
    Pass(now);
    --busy_;
  }
  // Returns the seconds of each pipeline that was busy all the time until now.
  // Only differences mean something.
  double Seconds(absl::Duration now) {
    Pass(now);
    return seconds_;
  }

 private:
  void Pass(absl::Duration now) {
    if (busy_ > 0) seconds_ += absl::ToDoubleSeconds(now - passed_) / busy_;
    passed_ = now;
  }

  int busy_ = 0;
  double seconds_ = 0;
  absl::Duration passed_;
};

}  // namespace sluice
