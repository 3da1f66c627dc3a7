#pragma once

#include <atomic>
#include <functional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace sluice {

// Called with the current measurement and the share done (0 to 1, never
// decreasing), on the measuring thread.
using ProfileProgress =
    std::function<void(absl::string_view what, double share)>;

// kCancelled once `cancelled`, which may be null, is true.
absl::Status CheckNotCancelled(const std::atomic<bool>* cancelled);

// Returns the first quartile of `times`: the time without much interference.
// The median of a busy machine depends on other work, and the minimum of a
// virtual one occurs once. REQUIRES: not empty.
double TypicalSeconds(std::vector<double> times);

// Times what this process computes, as it goes on in the long run. Where a
// control group limits processor time, a short span runs ahead of the limit and
// a long one is stopped in between; both count as at least the processor time
// that they took, divided by the quota.
class ComputeStopwatch {
 public:
  // Begins. `quota` is in cores; 0: none.
  explicit ComputeStopwatch(double quota);
  ComputeStopwatch();  // with CpuQuota()

  // Returns seconds since the beginning or the last call.
  double Lap();

 private:
  const double quota_;
  double wall_, processor_;
};

// Returns TypicalSeconds of a call of `body`, by a ComputeStopwatch, after a
// warm-up call: repeated until `seconds` have passed, but at least `min_calls`
// times, unless one call takes longer than all of `seconds` (and these are not
// 0). Returns the body's error, or kCancelled.
absl::StatusOr<double> TimeCalls(double seconds, int min_calls,
                                 const std::atomic<bool>* cancelled,
                                 absl::FunctionRef<absl::Status()> body);

// Fills memory with numbers near 1 that differ from their neighbours.
void FillFloats(float* out, size_t count);

}  // namespace sluice
