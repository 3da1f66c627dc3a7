#pragma once

#include <algorithm>

#include "absl/time/time.h"

namespace sluice {

// Measures from reports how long something has made no progress. The owner
// tells how much time has passed, so that it may leave out the time in which it
// did not run itself. Thread-compatible.
class Pace {
 public:
  void Start() { *this = Pace(); }
  void Passed(absl::Duration time) { still_ += time; }
  // Reports no progress since the report `interval` ago.
  void Stood(absl::Duration interval) { stood_ = still_ - interval; }
  // Reports progress.
  void Moved() {
    longest_ = std::max(longest_, stood_);
    still_ = stood_ = absl::ZeroDuration();
  }

  absl::Duration still() const { return still_; }
  // Whether there was no progress for longer than `min`, and for longer than
  // earlier pauses explain: work that once took long and went on may take
  // longer another time.
  bool stalled(absl::Duration min) const {
    constexpr int kTimes = 10;
    return still_ > std::max(min, kTimes * longest_);
  }

 private:
  absl::Duration still_;
  absl::Duration stood_;    // the time without progress, as reported
  absl::Duration longest_;  // the longest time without progress before progress
};

}  // namespace sluice
