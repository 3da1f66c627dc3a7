#include "runtime/exec/tier_table.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace sluice {
namespace {

std::string Table(const MemoryBudget& budget,
                  const std::vector<TierWant>& wants) {
  std::string table =
      absl::StrFormat("\n  %-34s %14d", "budget", budget.limit_bytes());
  for (const auto& [name, bytes] : budget.holders()) {
    absl::StrAppendFormat(&table, "\n  %-34s %14d",
                          absl::StrCat(name, " (held)"), bytes);
  }
  for (const TierWant& want : wants) {
    if (want.bytes == 0) continue;
    absl::StrAppendFormat(&table, "\n  %-34s %14d", want.name, want.bytes);
  }
  return table;
}

}  // namespace

absl::Status CheckFits(const MemoryBudget& budget,
                       const std::vector<TierWant>& wants,
                       absl::string_view advice) {
  uint64_t sum = 0;
  for (const TierWant& want : wants) sum += want.bytes;
  const uint64_t free = budget.free_bytes();
  if (sum <= free) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      TierName(budget.tier()), " memory is short by ", sum - free,
      " bytes for this stage; ", advice, "; bytes:", Table(budget, wants)));
}

}  // namespace sluice
