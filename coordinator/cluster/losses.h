#pragma once

#include <algorithm>
#include <cstdint>

#include "absl/time/time.h"

namespace sluice {

// Counts plans that ended, one after the other, because one of their workers
// was lost. A worker that crashes whenever it loads or computes returns each
// time, maybe with another name; if each plan waited for it, none would ever
// compute. So after the second loss, newcomers have to wait until the plan of
// the others computes, and a while longer. Times are of a monotonic clock.
// Thread-compatible.
class Losses {
 public:
  // Newcomers wait for `first` from when a plan computes; the time doubles, up
  // to `max`, with each loss that follows.
  Losses(absl::Duration first, absl::Duration max) : first_(first), max_(max) {}

  // Called when a plan that could have had this many `workers` was lost.
  void Add(int32_t workers) {
    in_a_row_ = std::min(in_a_row_ + 1, kMaxInARow);
    workers_ = std::max(workers_, workers);
  }
  // Called when a plan begins to compute.
  void Begin(absl::Duration now) {
    until_ = now;
    if (in_a_row_ < 2) return;
    until_ += std::min(max_, first_ * (int64_t{1} << (in_a_row_ - 2)));
  }
  // Called when the running plan, which could have had this many `workers`,
  // made progress. This ends the row of losses if it has as many workers as the
  // lost plans, or runs for long.
  void Progress(int32_t workers, absl::Duration now) {
    if (workers < workers_ && now - until_ <= max_) return;
    in_a_row_ = workers_ = 0;
  }

  int in_a_row() const { return in_a_row_; }
  // Whether newcomers still wait; `computes`: whether a plan computes.
  bool hold(bool computes, absl::Duration now) const {
    return in_a_row_ >= 2 && (!computes || now < until_);
  }

 private:
  static constexpr int kMaxInARow = 30;

  const absl::Duration first_;
  const absl::Duration max_;
  int in_a_row_ = 0;
  int32_t workers_ = 0;   // the maximum of the lost plans
  absl::Duration until_;  // newcomers wait, if a plan computes
};

}  // namespace sluice
