#pragma once

#include <algorithm>

#include "absl/time/time.h"

namespace sluice {

// How long something that should move has stood still, as reports of it show.
// Time is what the owner says has passed, so that it may leave out that in
// which it did not run itself. Thread-compatible.
class Pace {
 public:
  void Start() { *this = Pace(); }
  void Passed(absl::Duration time) { still_ += time; }
  // A report that nothing has moved since the one `interval` ago.
  void Stood(absl::Duration interval) { stood_ = still_ - interval; }
  // A report that something has.
  void Moved() {
    longest_ = std::max(longest_, stood_);
    still_ = stood_ = absl::ZeroDuration();
  }

  absl::Duration still() const { return still_; }
  // Whether it stands for longer than `least` and than anything that was seen
  // of it so far would explain: what took so long before and went on may take
  // longer another time.
  bool stalled(absl::Duration least) const {
    constexpr int kTimes = 10;
    return still_ > std::max(least, kTimes * longest_);
  }

 private:
  absl::Duration still_;
  absl::Duration stood_;    // of which reports are sure
  absl::Duration longest_;  // that it stood before it moved
};

}  // namespace sluice
