#include "runtime/profile/measure.h"

#include <time.h>

#include <algorithm>

#include "common/status_macros.h"
#include "common/threads/clock.h"
#include "runtime/memory/cpu_topology.h"

namespace sluice {
namespace {

// Returns the processor time that all threads of this process have taken.
double ProcessorSeconds() {
  timespec now = {};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) +
         1e-9 * static_cast<double>(now.tv_nsec);
}

}  // namespace

absl::Status CheckNotCancelled(const std::atomic<bool>* cancelled) {
  if (cancelled == nullptr || !cancelled->load(std::memory_order_relaxed)) {
    return absl::OkStatus();
  }
  return absl::CancelledError("measuring the machine was cancelled");
}

double TypicalSeconds(std::vector<double> times) {
  const auto fourth =
      times.begin() + static_cast<std::ptrdiff_t>(times.size() / 4);
  std::nth_element(times.begin(), fourth, times.end());
  return *fourth;
}

ComputeStopwatch::ComputeStopwatch(double quota)
    : quota_(quota),
      wall_(MonotonicSeconds()),
      processor_(ProcessorSeconds()) {}

ComputeStopwatch::ComputeStopwatch() : ComputeStopwatch(CpuQuota()) {}

double ComputeStopwatch::Lap() {
  const double wall = MonotonicSeconds();
  double seconds = wall - wall_;
  wall_ = wall;
  if (quota_ > 0) {
    const double processor = ProcessorSeconds();
    seconds = std::max(seconds, (processor - processor_) / quota_);
    processor_ = processor;
  }
  return seconds;
}

absl::StatusOr<double> TimeCalls(double seconds, int min_calls,
                                 const std::atomic<bool>* cancelled,
                                 absl::FunctionRef<absl::Status()> body) {
  SLUICE_RETURN_IF_ERROR(body());
  std::vector<double> times;
  const double start = MonotonicSeconds();
  ComputeStopwatch watch;
  while (MonotonicSeconds() - start < seconds ||
         static_cast<int>(times.size()) < min_calls) {
    if (seconds > 0 && !times.empty() && times.back() > seconds) break;
    SLUICE_RETURN_IF_ERROR(CheckNotCancelled(cancelled));
    SLUICE_RETURN_IF_ERROR(body());
    times.push_back(watch.Lap());
  }
  return TypicalSeconds(std::move(times));
}

void FillFloats(float* out, size_t count) {
  uint32_t state = 1;
  for (size_t i = 0; i < count; ++i) {
    state = state * 1664525u + 1013904223u;
    out[i] = static_cast<float>(static_cast<int32_t>(state)) * 0x1p-31f;
  }
}

}  // namespace sluice
