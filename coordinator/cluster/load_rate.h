#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <utility>

#include "absl/time/time.h"

namespace sluice {

// How fast a worker loads, from what it reports of it. Thread-compatible.
class LoadRate {
 public:
  // Another load begins.
  void Start() { *this = LoadRate(); }
  // `done` of `total` bytes are loaded at `now`, which is monotonic.
  void Observe(absl::Duration now, uint64_t done, uint64_t total);

  uint64_t done() const { return done_; }
  uint64_t total() const { return total_; }
  // Without a report yet, a load counts as not begun.
  double fraction() const {
    return total_ == 0
               ? 0
               : static_cast<double>(done_) / static_cast<double>(total_);
  }
  // Over the last seconds; 0 as long as too little is known.
  double bytes_per_second() const;

 private:
  uint64_t done_ = 0;
  uint64_t total_ = 0;
  std::deque<std::pair<absl::Duration, uint64_t>> seen_;
};

// Of the workers of a plan, as people read it: ", 1.2 GB/s, 0:35 left". The
// time is that of the slowest worker. "" as long as it can't be told.
std::string RateText(double bytes_per_second, absl::Duration left);

// The time that what is left of a load takes; infinite if it can't be told.
absl::Duration TimeLeft(const LoadRate& load);

}  // namespace sluice
