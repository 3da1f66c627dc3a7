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
  // The device's budget, or null. Each stage takes its part at once.
  MemoryBudget* device_budget = nullptr;
  MemoryBudget* host_budget = nullptr;
  // The maximum of a step's rows; 256 suffice.
  int32_t max_rows = 256;
};

// The members of ComputeProfile with these names.
struct LayerOverheads {
  double layer_seconds = 0;
  double row_element_seconds = 0;
};

// Measures a layer's fixed cost, and the cost of rows beside attention and
// GEMMs, by running small stages of random weights through the executor. Takes
// about `seconds`, and up to 100 MiB. kResourceExhausted.
absl::StatusOr<LayerOverheads> MeasureLayerOverheads(
    const StageProbeOptions& options, double seconds,
    const std::atomic<bool>* cancelled);

// Measures the seconds per logit of greedy sampling of a step's rows, with all
// threads.
absl::StatusOr<double> MeasureSampling(int threads,
                                       const std::vector<int>& cores,
                                       MemoryBudget* budget, double seconds,
                                       const std::atomic<bool>* cancelled);

}  // namespace sluice
