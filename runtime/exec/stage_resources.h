#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/kernels/device_choice.h"
#include "runtime/memory/memory_budget.h"
#include "runtime/trace/trace.h"

namespace sluice {

// A stage's share of its machine. All pointers must outlive it.
struct StageResources {
  int32_t compute_threads = 1;  // the calling thread included
  std::vector<int> cores;       // one for each compute thread, or empty
  DeviceChoice device;
  // The budget of a device that has memory of its own; else null.
  MemoryBudget* device_budget = nullptr;
  MemoryBudget* host_budget = nullptr;
  // These are for data on disk: both or none.
  MemoryBudget* disk_budget = nullptr;
  std::string disk_dir;
  // Random weights in place of the model's: for measuring.
  bool dummy_weights = false;
  Tracer* tracer = nullptr;  // may be null
};

}  // namespace sluice
