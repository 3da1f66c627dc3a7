#include "worker/tensor_ranks.h"

#include <algorithm>
#include <utility>

#include "common/status_macros.h"
#include "runtime/memory/cpu_topology.h"

namespace sluice {
namespace {

bool Has(const std::vector<int32_t>& counts, int32_t count) {
  return std::find(counts.begin(), counts.end(), count) != counts.end();
}

}  // namespace

TensorRanks::TensorRanks(const MachineShare& machine, MemoryBudget* first)
    : machine_(machine), first_(first) {
  for (size_t i = 1; i < machine.ranks.size(); ++i) {
    if (!machine.ranks[i].has_memory()) continue;
    budgets_.push_back(std::make_unique<MemoryBudget>(
        Tier::kDevice, machine.device_memory_bytes));
  }
}

std::vector<const MemoryBudget*> TensorRanks::other_budgets() const {
  std::vector<const MemoryBudget*> others;
  for (const auto& budget : budgets_) others.push_back(budget.get());
  return others;
}

absl::StatusOr<std::vector<RankResources>> TensorRanks::Shares(
    int32_t count) const {
  const bool may = count == this->count() ||
                   (machine_.ranks_by_plan &&
                    (count == 1 || Has(machine_.RankCounts(), count)));
  if (!may) {
    return FailedPrecondition("tensor-parallel=", count,
                              ": this worker may not have so many ranks; its "
                              "--tensor-parallel says which");
  }
  std::vector<RankResources> shares;
  if (count == 1) return shares;
  const std::vector<std::vector<int>> cores =
      DivideCores(machine_.cores, NumaNodesOf(machine_.cores), count);
  for (int32_t i = 0; i < count; ++i) {
    RankResources& rank = shares.emplace_back();
    rank.device = machine_.ranks[i];
    rank.cores = cores[i];
    // Threads are pinned if there are as many as cores.
    rank.compute_threads = rank.cores.empty()
                               ? std::max(1, (machine_.threads + i) / count)
                               : static_cast<int32_t>(rank.cores.size());
    if (!rank.device.has_memory()) continue;
    rank.device_budget = i == 0 ? first_ : budgets_[i - 1].get();
  }
  return shares;
}

void SetRanks(const MachineShare& machine, MachineProfile* profile) {
  const std::vector<int32_t> counts = machine.RankCounts();
  std::erase_if(profile->rank_choices, [&](const RankChoice& choice) {
    return !Has(counts, choice.ranks);
  });
  if (machine.ranks_by_plan || profile->rank_choices.empty()) return;
  *profile = *profile->WithRanks(profile->rank_choices.back().ranks);
}

}  // namespace sluice
