#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/time/time.h"
#include "common/types.h"
#include "sluice/v1/pipeline.pb.h"

namespace sluice {

// Which stage a step waits for when nothing in the plan moves, by elimination:
// the first one that has not handed it on, and is not kept from that by the
// next one. `stages` is what each says that it is at, in order; one that says
// nothing of `epoch` has done nothing for it. The last stage, if all the others
// have done their part: what it has done has not come back. Pure.
// REQUIRES: !stages.empty().
size_t StageHeldAt(const std::vector<v1::Activity>& stages, PlanEpoch epoch,
                   int64_t step);

// "computing", "loading": what an activity is called in messages.
const char* ActivityName(v1::Activity::Kind kind);

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
