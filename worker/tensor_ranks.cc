#include "worker/tensor_ranks.h"

#include <algorithm>

#include "runtime/memory/cpu_topology.h"

namespace sluice {

TensorRanks::TensorRanks(const MachineShare& machine, MemoryBudget* first) {
  const auto count = static_cast<int>(machine.ranks.size());
  if (count == 0) return;
  const std::vector<std::vector<int>> cores =
      DivideCores(machine.cores, NumaNodesOf(machine.cores), count);
  for (int i = 0; i < count; ++i) {
    RankResources& rank = shares_.emplace_back();
    rank.device = machine.ranks[i];
    rank.cores = cores[i];
    // Threads are pinned if there are as many as cores.
    rank.compute_threads = rank.cores.empty()
                               ? std::max(1, (machine.threads + i) / count)
                               : static_cast<int32_t>(rank.cores.size());
    if (!rank.device.has_memory()) continue;
    if (i == 0) {
      rank.device_budget = first;
      continue;
    }
    budgets_.push_back(std::make_unique<MemoryBudget>(
        Tier::kDevice, machine.device_memory_bytes));
    rank.device_budget = budgets_.back().get();
  }
}

}  // namespace sluice
