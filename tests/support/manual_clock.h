#pragma once

#include "absl/time/time.h"
#include "common/threads/clock.h"
#include "common/threads/mutex.h"

namespace sluice {

// A clock that tests set, starting 1,700,000,000 seconds after the epoch.
// Thread-safe.
class ManualClock : public Clock {
 public:
  absl::Time Now() const override {
    return absl::FromUnixSeconds(1'700'000'000) + passed();
  }
  absl::Duration Monotonic() const override {
    return absl::Seconds(1000) + passed();
  }
  void Advance(absl::Duration by) {
    MutexLock lock(&mu_);
    passed_ += by;
  }

 private:
  absl::Duration passed() const {
    MutexLock lock(&mu_);
    return passed_;
  }
  mutable Mutex mu_;
  absl::Duration passed_ ABSL_GUARDED_BY(mu_) = absl::ZeroDuration();
};

}  // namespace sluice
