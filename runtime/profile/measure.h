#pragma once

#include <atomic>
#include <functional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace sluice {

// Told what is being measured, and how much of the whole is done (0 to 1, never
// less than before). On the measuring thread.
using ProfileProgress =
    std::function<void(absl::string_view what, double share)>;

// kCancelled once `cancelled`, which may be null, is true.
absl::Status CheckNotCancelled(const std::atomic<bool>* cancelled);

// The time that a fourth of these are below: what something takes where little
// else comes in between. The median of a busy machine says more of the others,
// and the least time of a virtual one happens once. REQUIRES: not empty.
double TypicalSeconds(std::vector<double> times);

// TypicalSeconds of a call of `body`, after one that does not count: called
// again and again until `seconds` have passed, but at least `least` times,
// unless a call alone takes longer than all of `seconds` (and these are not 0).
// The body's error, or kCancelled.
absl::StatusOr<double> TimeCalls(double seconds, int least,
                                 const std::atomic<bool>* cancelled,
                                 absl::FunctionRef<absl::Status()> body);

// Fills memory with numbers near 1, none of them like its neighbours.
void FillFloats(float* out, size_t count);

}  // namespace sluice
