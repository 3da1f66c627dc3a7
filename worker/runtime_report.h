#pragma once

#include <cstdint>

#include "runtime/exec/sweep_stats.h"

namespace sluice {

// The totals of a worker's runtime since the worker began, over all its stages,
// and the placement of the present stage's data. Reports of workers can be
// added.
struct RuntimeReport {
  SweepStats stats;
  RealisedPlacement placement;  // zeros without a stage
  uint64_t device_peak_bytes = 0;
  uint64_t host_peak_bytes = 0;
  uint64_t disk_peak_bytes = 0;
  // The peak use of the KV cache in host memory, of placement.kv_host_bytes in
  // total.
  uint64_t kv_host_peak_bytes = 0;
  // The peak resident memory of the process that all workers of the report
  // share; 0: not known.
  uint64_t resident_peak_bytes = 0;
  // Bytes of packed weights on disk, which stay there for the next run.
  uint64_t disk_image_bytes = 0;

  RuntimeReport& operator+=(const RuntimeReport& other);
};

}  // namespace sluice
