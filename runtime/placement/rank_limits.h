#pragma once

#include <vector>

#include "absl/types/span.h"
#include "common/policy.h"
#include "runtime/placement/stage_placement.h"
#include "runtime/placement/stage_sizes.h"

namespace sluice {

// `limits`, but for host memory and disk, of which there is enough.
TierLimits WithoutLimit(TierLimits limits);

// Divides the host memory and the disk that the ranks of a stage share. Each
// gets what it needs and as much more as the others; of KV that is automatic,
// all need as many pages as there is room for. Where even one sequence's does
// not fit, the parts are in proportion to the needs.
//
// `ranks` are the sizes of each, `device_bytes` what its device has free.
// Returns each rank's limits.
std::vector<TierLimits> DivideLimits(absl::Span<const StageSizes* const> ranks,
                                     absl::Span<const uint64_t> device_bytes,
                                     const Policy& policy,
                                     const TierLimits& limits);

}  // namespace sluice
