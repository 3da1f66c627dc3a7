#pragma once

#include <cstdint>

#include "runtime/exec/sweep_stats.h"

namespace sluice {

// What a worker's runtime did since the worker began, over all the stages that
// it played, and where the data of the present one lies. Sums over workers
// make sense.
struct RuntimeReport {
  SweepStats stats;
  RealisedPlacement placement;  // zeros without a stage
  uint64_t device_peak_bytes = 0;
  uint64_t host_peak_bytes = 0;
  uint64_t disk_peak_bytes = 0;
  // Most of the KV cache in host memory that was in use, of
  // placement.kv_host_bytes that there is room for.
  uint64_t kv_host_peak_bytes = 0;
  // Most memory in RAM at a time, of the process that all workers of the report
  // share; 0: not known.
  uint64_t resident_peak_bytes = 0;
  // Weight images on disk, which stay there for the next run.
  uint64_t disk_image_bytes = 0;

  RuntimeReport& operator+=(const RuntimeReport& other);
};

SweepStats& operator+=(SweepStats& a, const SweepStats& b);
// `b` is an earlier state of `a`.
SweepStats operator-(SweepStats a, const SweepStats& b);

}  // namespace sluice
