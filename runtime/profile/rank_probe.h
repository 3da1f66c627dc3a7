#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "common/machine_profile.h"
#include "runtime/collective/collective.h"
#include "runtime/memory/memory_budget.h"

namespace sluice {

struct RankProbeOptions {
  int32_t ranks = 2;
  DType dtype = DType::kFloat32;  // of the products
  int32_t threads = 1;            // of all ranks together
  std::vector<int> cores;         // one for each thread, or empty
  // Whether each rank has a processor of its own, a GPU: then its rates are
  // those of one alone. Else ranks share the cores.
  bool own_processors = false;
  MemoryBudget* budget = nullptr;  // of host memory
};

// Measures what ranks are worth that compute a stage together: the rates of
// each while all compute, and their exchange through `group`, which has as many
// ends; the exchange's rows lie in host memory. Takes about `seconds`, at least
// some tenths. The errors of GemmProbe and of Collective; kCancelled.
absl::StatusOr<RankChoice> MeasureRanks(const RankProbeOptions& options,
                                        CollectiveGroup* group, double seconds,
                                        const std::atomic<bool>* cancelled);

// Measures the exchange alone.
absl::StatusOr<ExchangeProfile> MeasureExchange(
    const RankProbeOptions& options, CollectiveGroup* group, double seconds,
    const std::atomic<bool>* cancelled);

}  // namespace sluice
