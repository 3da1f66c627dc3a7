#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "runtime/memory/memory_budget.h"

namespace sluice {

// Something that a plan is going to charge to a budget.
struct TierWant {
  std::string name;
  uint64_t bytes;
};

// kResourceExhausted if what is wanted exceeds what the budget has left, with
// `advice` and a table of who holds and who wants how much.
absl::Status CheckFits(const MemoryBudget& budget,
                       const std::vector<TierWant>& wants,
                       absl::string_view advice);

}  // namespace sluice
