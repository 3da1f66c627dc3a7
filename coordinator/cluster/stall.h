#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/time/time.h"
#include "common/types.h"
#include "sluice/v1/pipeline.pb.h"

namespace sluice {

// Returns the stage that a step waits for when a plan is stalled, by
// elimination: the first one that has not handed it on, and is not blocked by
// the next one. `stages` has their activities in order; one of another epoch
// has done nothing for `epoch`. The last stage if all others have done their
// part: its result has not come back. Pure. REQUIRES: !stages.empty().
size_t StageHeldAt(const std::vector<v1::Activity>& stages, PlanEpoch epoch,
                   int64_t step);

// The name of an activity in messages: "computing", "loading".
const char* ActivityName(v1::Activity::Kind kind);

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
