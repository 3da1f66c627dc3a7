#include "worker/usage_meter.h"

namespace sluice {

UsageMeter::UsageMeter(const Clock* clock)
    : clock_(clock), since_(clock->Monotonic()) {}

void UsageMeter::SetCounters(Counter* busy, Counter* waiting, Counter* idle) {
  MutexLock lock(&mu_);
  AddSpanLocked();
  counters_[0] = busy;
  counters_[1] = waiting;
  counters_[2] = idle;
}

void UsageMeter::Switch(State state) {
  MutexLock lock(&mu_);
  AddSpanLocked();
  state_ = state;
}

UsageTotals UsageMeter::totals() {
  MutexLock lock(&mu_);
  AddSpanLocked();
  return {seconds_[0], seconds_[1], seconds_[2]};
}

void UsageMeter::AddSpanLocked() {
  const absl::Duration now = clock_->Monotonic();
  const double seconds = absl::ToDoubleSeconds(now - since_);
  since_ = now;
  const auto i = static_cast<size_t>(state_);
  seconds_[i] += seconds;
  if (counters_[i] != nullptr) counters_[i]->Add(seconds);
}

}  // namespace sluice
