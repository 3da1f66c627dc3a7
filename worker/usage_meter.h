#pragma once

#include "common/metrics/metrics.h"
#include "common/threads/clock.h"
#include "common/threads/mutex.h"

namespace sluice {

struct UsageTotals {
  double busy_seconds = 0;
  double waiting_seconds = 0;
  double idle_seconds = 0;
};

// Measures the time that a stage is busy (computing), waiting (sequences are in
// flight, but the next input is not here yet, or output can't leave) or idle.
// Thread-safe.
class UsageMeter {
 public:
  enum class State { kBusy, kWaiting, kIdle };

  // Starts idle. `clock` must outlive the meter.
  explicit UsageMeter(const Clock* clock);

  // Sets the counters to which time is added from now on; null: only totals.
  void SetCounters(Counter* busy, Counter* waiting, Counter* idle);
  void Switch(State state);
  // The totals up to now; updates the counters, too.
  UsageTotals totals();

 private:
  void AddSpanLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Clock* const clock_;
  Mutex mu_;
  State state_ ABSL_GUARDED_BY(mu_) = State::kIdle;
  absl::Duration since_ ABSL_GUARDED_BY(mu_);
  // The seconds in each state.
  double seconds_[3] ABSL_GUARDED_BY(mu_) = {};
  Counter* counters_[3] ABSL_GUARDED_BY(mu_) = {};
};

}  // namespace sluice
