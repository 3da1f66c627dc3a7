#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <utility>

#include "absl/time/time.h"

namespace sluice {

// Measures how fast a worker loads, from its reports. Thread-compatible.
class LoadRate {
 public:
  // Called when another load begins.
  void Start() { *this = LoadRate(); }
  // Called when `done` of `total` bytes are loaded at `now`, a monotonic time.
  void Observe(absl::Duration now, uint64_t done, uint64_t total);

  uint64_t done() const { return done_; }
  uint64_t total() const { return total_; }
  // The loaded share; a load without a report counts as not begun.
  double fraction() const {
    return total_ == 0
               ? 0
               : static_cast<double>(done_) / static_cast<double>(total_);
  }
  // The rate over the last seconds; 0 as long as too little is known.
  double bytes_per_second() const;

 private:
  uint64_t done_ = 0;
  uint64_t total_ = 0;
  std::deque<std::pair<absl::Duration, uint64_t>> seen_;
};

// Formats the rate of a plan's workers and the slowest one's time for people:
// ", 1.2 GB/s, 0:35 left". "" as long as they can't be told.
std::string RateText(double bytes_per_second, absl::Duration left);

// The time left of a load; infinite if it can't be told.
absl::Duration TimeLeft(const LoadRate& load);

}  // namespace sluice
