#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "common/machine_profile.h"
#include "runtime/exec/stage_resources.h"
#include "runtime/memory/memory_budget.h"
#include "runtime/profile/profiler.h"

namespace sluice {

// The shares of the ranks by which a worker computes its stages, tensor
// parallel: the threads are divided, with their cores by NUMA nodes, and each
// device has a budget of its own.
class TensorRanks {
 public:
  // `first` is the first device's budget; it, `machine` and this must outlive
  // the shares.
  TensorRanks(const MachineShare& machine, MemoryBudget* first);
  // The number of ranks where nobody says how many.
  int32_t count() const {
    return std::max<int32_t>(1, static_cast<int32_t>(machine_.ranks.size()));
  }
  std::vector<const MemoryBudget*> other_budgets() const;  // but for `first`
  // Returns the shares of the first so many ranks: none for one. Resources that
  // are not theirs lie idle. kFailedPrecondition if a stage here may not have
  // so many.
  absl::StatusOr<std::vector<RankResources>> Shares(int32_t count) const;

 private:
  const MachineShare& machine_;
  MemoryBudget* const first_;
  std::vector<std::unique_ptr<MemoryBudget>> budgets_;  // of further devices
};

// Has a measured profile say what ranks a worker with this share may have: a
// choice, or, where it always has as many, the figures with these.
void SetRanks(const MachineShare& machine, MachineProfile* profile);

}  // namespace sluice
