#pragma once

#include <atomic>
#include <vector>

#include "absl/status/statusor.h"
#include "common/types.h"
#include "runtime/kernels/device_choice.h"
#include "runtime/memory/memory_budget.h"

namespace sluice {

struct StageProbeOptions {
  DType dtype = DType::kBFloat16;
  int threads = 1;
  std::vector<int> cores;  // as of StageOptions
  DeviceChoice device;
  // With a device; else null. Each stage takes its part, at once.
  MemoryBudget* device_budget = nullptr;
  MemoryBudget* host_budget = nullptr;
  // Of a step; 256 are enough to tell.
  int32_t most_rows = 256;
};

// See ComputeProfile.
struct LayerOverheads {
  double layer_seconds = 0;
  double row_element_seconds = 0;
};

// Runs small stages of random weights through the executor: what a layer takes
// that is too small for anything to count, and what the rows of larger ones
// take beside attention and products. Takes about `seconds`, and up to 100 MiB.
// kResourceExhausted.
absl::StatusOr<LayerOverheads> MeasureLayerOverheads(
    const StageProbeOptions& options, double seconds,
    const std::atomic<bool>* cancelled);

// Seconds for each logit that greedy sampling of a step's rows takes, with all
// threads.
absl::StatusOr<double> MeasureSampling(int threads,
                                       const std::vector<int>& cores,
                                       MemoryBudget* budget, double seconds,
                                       const std::atomic<bool>* cancelled);

}  // namespace sluice
