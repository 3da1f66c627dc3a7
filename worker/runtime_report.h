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

  RuntimeReport& operator+=(const RuntimeReport& other);
};

SweepStats& operator+=(SweepStats& a, const SweepStats& b);
// `b` is an earlier state of `a`.
SweepStats operator-(SweepStats a, const SweepStats& b);

}  // namespace sluice
