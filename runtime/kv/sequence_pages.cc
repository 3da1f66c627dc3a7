#include "runtime/kv/sequence_pages.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace sluice {

PageTables::PageTables(const TierPages& pages, int32_t longest) {
  const int64_t longest_pages = PagesOf(longest);
  int64_t spare = -(longest_pages - 1);
  for (size_t tier = 0; tier < kNumTiers; ++tier) {
    pools_[tier] = PagePool(pages[tier]);
    num_pages_ += pages[tier];
    // If every tier had fewer free than a sequence needs, they would have at
    // most so many more than one such tier.
    if (pages[tier] > 0) spare += longest_pages - 1;
  }
  by_need_ = pages[static_cast<size_t>(Tier::kDisk)] <= 0 &&
             std::count_if(pages.begin(), pages.end(),
                           [](int64_t of_tier) { return of_tier > 0; }) == 1;
  num_pages_ = std::max<int64_t>(0, num_pages_ - std::max<int64_t>(0, spare));
}

int64_t PageTables::num_used() const {
  int64_t used = 0;
  for (const PagePool& pool : pools_) used += pool.num_used();
  return used;
}

absl::Status PageTables::Admit(SequenceId id, int32_t max_positions) {
  if (tables_.contains(id)) {
    return InvalidArgument("sequence ", id.value(), " is admitted already");
  }
  const int64_t count = PagesOf(max_positions);
  // The fastest tier if none has room: its error is as good as another's.
  size_t best = 0;
  double min = 2;
  for (size_t tier = 0; tier < kNumTiers; ++tier) {
    const PagePool& pool = pools_[tier];
    if (pool.num_pages() == 0) continue;
    if (min == 2) best = tier;
    if (!by_need_ && pool.num_free() < count) continue;
    const double fill = static_cast<double>(pool.num_used() + count) /
                        static_cast<double>(pool.num_pages());
    if (fill < min) {
      min = fill;
      best = tier;
    }
  }
  SequencePages table;
  table.tier = static_cast<Tier>(best);
  table.capacity = max_positions;
  table.pages.reserve(static_cast<size_t>(count));
  const auto name = [&] {
    return absl::StrCat("sequence ", id.value(), " of ", max_positions,
                        " positions");
  };
  if (!by_need_) {
    SLUICE_RETURN_IF_ERROR(
        Annotate(pools_[best].Take(count, &table.pages), name()));
  } else if (count > pools_[best].num_pages()) {
    return ResourceExhausted(name(), ": the KV cache has ",
                             pools_[best].num_pages(), " pages, but ", count,
                             " are needed");
  }
  tables_.emplace(id, std::move(table));
  return absl::OkStatus();
}

absl::Status PageTables::Grow(SequencePages* table, int32_t positions) {
  const int64_t lacking =
      PagesOf(positions) - static_cast<int64_t>(table->pages.size());
  if (lacking <= 0) return absl::OkStatus();
  return pools_[static_cast<size_t>(table->tier)].Take(lacking, &table->pages);
}

absl::Status PageTables::Release(SequenceId id) {
  auto it = tables_.find(id);
  if (it == tables_.end()) {
    return InvalidArgument("sequence ", id.value(), " is not known here");
  }
  pools_[static_cast<size_t>(it->second.tier)].GiveBack(it->second.pages);
  tables_.erase(it);
  return absl::OkStatus();
}

void PageTables::Clear() {
  for (const auto& [id, table] : tables_) {
    pools_[static_cast<size_t>(table.tier)].GiveBack(table.pages);
  }
  tables_.clear();
  for (PagePool& pool : pools_) pool.Forget();
}

SequencePages* PageTables::Find(SequenceId id) {
  auto it = tables_.find(id);
  return it == tables_.end() ? nullptr : &it->second;
}

}  // namespace sluice
