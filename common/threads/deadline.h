#pragma once

#include <algorithm>

#include "absl/time/time.h"
#include "common/threads/clock.h"

namespace sluice {

// A moment on the monotonic clock, which changes of the machine's wall clock do
// not move. A value type.
class Deadline {
 public:
  // The moment `wait` from now; `wait` may be infinite.
  static Deadline In(absl::Duration wait) {
    return Deadline(Clock::Real()->Monotonic() + wait);
  }
  static Deadline Never() { return Deadline(absl::InfiniteDuration()); }

  // The remaining time; zero once the deadline has passed.
  absl::Duration left() const {
    if (at_ == absl::InfiniteDuration()) return at_;
    return std::max(absl::ZeroDuration(), at_ - Clock::Real()->Monotonic());
  }
  bool passed() const { return left() == absl::ZeroDuration(); }

  friend bool operator==(const Deadline&, const Deadline&) = default;

 private:
  explicit Deadline(absl::Duration at) : at_(at) {}

  absl::Duration at_;  // since the clock's start
};

}  // namespace sluice
