#pragma once

#include <atomic>
#include <vector>

#include "absl/status/statusor.h"
#include "common/machine_profile.h"
#include "runtime/kernels/backend.h"
#include "runtime/memory/memory_budget.h"

namespace sluice {

struct StageProbeOptions {
  DType dtype = DType::kBFloat16;
  int threads = 1;
  std::vector<int> cores;  // as of StageExecutor::Options
  BackendKind backend = BackendKind::kCpu;
  MemoryBudget* device_budget = nullptr;  // with a device; else null
  MemoryBudget* host_budget = nullptr;
};

// Runs small stages of random weights through the executor, and sets
// `layer_seconds` and `row_element_seconds` of `compute` to what its products
// and attention, which must be there, leave unexplained: the first from a layer
// too small to count otherwise, the second from one that is large enough to be
// like others and small enough that products don't drown the rest. Takes about
// `seconds`, and up to 200 MiB. kResourceExhausted.
absl::Status MeasureLayerOverheads(const StageProbeOptions& options,
                                   double seconds,
                                   const std::atomic<bool>* cancelled,
                                   ComputeProfile* compute);

// Seconds for each logit that greedy sampling of a step's rows takes, with all
// threads.
absl::StatusOr<double> MeasureSampling(int threads,
                                       const std::vector<int>& cores,
                                       MemoryBudget* budget, double seconds,
                                       const std::atomic<bool>* cancelled);

}  // namespace sluice
