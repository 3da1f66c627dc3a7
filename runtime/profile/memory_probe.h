#pragma once

#include <atomic>

#include "absl/status/statusor.h"
#include "runtime/memory/compute_pool.h"
#include "runtime/memory/device.h"
#include "runtime/memory/memory_budget.h"

namespace sluice {

// Measures bytes per second that the pool's threads read of memory beyond the
// caches. Takes about `seconds`, and up to 256 MiB of `budget`.
absl::StatusOr<double> MeasureMemoryReads(ComputePool* pool,
                                          MemoryBudget* budget, double seconds,
                                          const std::atomic<bool>* cancelled);

struct CopyRates {
  double to_device_bytes_per_second = 0;
  double to_host_bytes_per_second = 0;
};
// Measures copies in each direction, with as many in flight as the runtime has:
// one, of megabytes. Up to 64 MiB of each budget.
absl::StatusOr<CopyRates> MeasureCopies(Device* device,
                                        MemoryBudget* device_budget,
                                        MemoryBudget* host_budget,
                                        double seconds,
                                        const std::atomic<bool>* cancelled);

// Measures bytes per second that the device reads and writes of its own memory;
// a copy within it does both. Up to 512 MiB of its budget.
absl::StatusOr<double> MeasureDeviceMemory(Device* device,
                                           const MemoryBudget& device_budget,
                                           double seconds,
                                           const std::atomic<bool>* cancelled);

}  // namespace sluice
