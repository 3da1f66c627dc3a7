#pragma once

#include <memory>
#include <vector>

#include "runtime/exec/stage_resources.h"
#include "runtime/memory/memory_budget.h"
#include "runtime/profile/profiler.h"

namespace sluice {

// The shares of the ranks by which a worker computes its stages, tensor
// parallel: the threads are divided, with their cores by NUMA nodes, and each
// device has a budget of its own. Without ranks it has nothing.
class TensorRanks {
 public:
  // `first` is the first device's budget; it and this must outlive the shares.
  TensorRanks(const MachineShare& machine, MemoryBudget* first);
  const std::vector<RankResources>& shares() const { return shares_; }

 private:
  std::vector<std::unique_ptr<MemoryBudget>> budgets_;  // of further devices
  std::vector<RankResources> shares_;
};

}  // namespace sluice
