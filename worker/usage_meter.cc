#include "worker/usage_meter.h"

namespace sluice {

UsageMeter::UsageMeter(const Clock* clock)
    : clock_(clock), since_(clock->Monotonic()) {}

void UsageMeter::SetCounters(Counter* busy, Counter* waiting, Counter* idle) {
  MutexLock lock(&mu_);
  AddSpanLocked();
  busy_ = busy;
  waiting_ = waiting;
  idle_ = idle;
}

void UsageMeter::Switch(State state) {
  MutexLock lock(&mu_);
  AddSpanLocked();
  state_ = state;
}

UsageTotals UsageMeter::totals() {
  MutexLock lock(&mu_);
  AddSpanLocked();
  return totals_;
}

void UsageMeter::AddSpanLocked() {
  const absl::Duration now = clock_->Monotonic();
  const double seconds = absl::ToDoubleSeconds(now - since_);
  since_ = now;
  Counter* counter = nullptr;
  switch (state_) {
    case State::kBusy:
      totals_.busy_seconds += seconds;
      counter = busy_;
      break;
    case State::kWaiting:
      totals_.waiting_seconds += seconds;
      counter = waiting_;
      break;
    case State::kIdle:
      totals_.idle_seconds += seconds;
      counter = idle_;
      break;
  }
  if (counter != nullptr) counter->Add(seconds);
}

}  // namespace sluice
