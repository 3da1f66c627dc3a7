#pragma once

#include <algorithm>
#include <cstdint>

#include "absl/time/time.h"

namespace sluice {

// Counts plans that ended, one after the other, because one of their workers
// was lost. A worker that crashes whenever it loads or computes comes back each
// time, maybe with another name; if each plan waited for it, none would ever
// compute. So after the second loss those that came since have to wait, until
// the plan of the others computes and for a while. Times are a clock's.
// Thread-compatible.
class Losses {
 public:
  // How long they wait from when a plan computes begins with `first`, and
  // doubles, up to `most`, with each loss that follows.
  Losses(absl::Duration first, absl::Duration most)
      : first_(first), most_(most) {}

  // A plan ended so that could have had as many `workers`.
  void Add(int32_t workers) {
    in_a_row_ = std::min(in_a_row_ + 1, kMostInARow);
    workers_ = std::max(workers_, workers);
  }
  // A plan begins to compute.
  void Begin(absl::Duration now) {
    until_ = now;
    if (in_a_row_ < 2) return;
    until_ += std::min(most_, first_ * (int64_t{1} << (in_a_row_ - 2)));
  }
  // The plan that computes, which could have had as many `workers`, got
  // something done. That ends the row if it has as many as those that were
  // lost, or goes on for long.
  void Progress(int32_t workers, absl::Duration now) {
    if (workers < workers_ && now - until_ <= most_) return;
    in_a_row_ = workers_ = 0;
  }

  int in_a_row() const { return in_a_row_; }
  // Whether those that have come since wait yet; `computes`: a plan does.
  bool hold(bool computes, absl::Duration now) const {
    return in_a_row_ >= 2 && (!computes || now < until_);
  }

 private:
  static constexpr int kMostInARow = 30;

  const absl::Duration first_;
  const absl::Duration most_;
  int in_a_row_ = 0;
  int32_t workers_ = 0;   // the most of the plans that were lost
  absl::Duration until_;  // they wait, if a plan computes
};

}  // namespace sluice
