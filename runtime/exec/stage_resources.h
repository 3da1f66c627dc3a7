#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/collective/collective.h"
#include "runtime/kernels/device_choice.h"
#include "runtime/memory/memory_budget.h"
#include "runtime/trace/trace.h"

namespace sluice {

// The share of one of the ranks that compute a stage together, as far as they
// differ.
struct RankResources {
  int32_t compute_threads = 1;
  std::vector<int>
      cores;  // as below; of one NUMA node, where there are several
  DeviceChoice device;
  MemoryBudget* device_budget = nullptr;
};

// A stage's share of its machine. All pointers must outlive it.
struct StageResources {
  int32_t compute_threads = 1;  // the calling thread included
  std::vector<int> cores;       // one for each compute thread, or empty
  DeviceChoice device;
  // The budget of a device that has memory of its own; else null.
  MemoryBudget* device_budget = nullptr;
  // The shares of several ranks, tensor parallel, whose devices are of one
  // kind; device, device_budget and cores are then theirs. Empty: one rank.
  std::vector<RankResources> ranks;
  // Makes what the ranks exchange columns by; null: the memory of this process,
  // for devices whose memory it can read.
  std::function<absl::StatusOr<std::unique_ptr<CollectiveGroup>>()> exchange;
  // The host memory and disk of all ranks.
  MemoryBudget* host_budget = nullptr;
  // These are for data on disk: both or none.
  MemoryBudget* disk_budget = nullptr;
  std::string disk_dir;
  // Random weights in place of the model's: for measuring.
  bool dummy_weights = false;
  Tracer* tracer = nullptr;  // may be null
};

}  // namespace sluice
