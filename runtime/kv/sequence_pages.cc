#include "runtime/kv/sequence_pages.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace sluice {

PageTables::PageTables(const GroupPages& pages, int32_t longest,
                       int32_t window_pages) {
  limits_[KvGroup::kAll] = std::numeric_limits<int32_t>::max();
  limits_[KvGroup::kWindow] = window_pages;
  for (const KvGroup group : kKvGroups) {
    const TierPages& of_tiers = pages[group];
    Pools& of = groups_[group];
    const int64_t longest_pages = Count(group, longest);
    int64_t spare = -(longest_pages - 1);
    for (size_t tier = 0; tier < kNumTiers; ++tier) {
      of.pools[tier] = PagePool(of_tiers[tier]);
      of.num_pages += of_tiers[tier];
      // If every tier had fewer free than a sequence needs, they would have at
      // most so many more than one such tier.
      if (of_tiers[tier] > 0) spare += longest_pages - 1;
    }
    of.present = of.num_pages > 0;
    of.by_need = of_tiers[static_cast<size_t>(Tier::kDisk)] <= 0 &&
                 std::count_if(of_tiers.begin(), of_tiers.end(),
                               [](int64_t count) { return count > 0; }) == 1;
    of.num_pages =
        std::max<int64_t>(0, of.num_pages - std::max<int64_t>(0, spare));
  }
}

bool PageTables::by_need() const {
  return std::all_of(groups_.begin(), groups_.end(),
                     [](const Pools& of) { return of.by_need || !of.present; });
}

bool PageTables::can_share() const {
  const Pools& of = groups_[KvGroup::kAll];
  return of.present && !groups_[KvGroup::kWindow].present &&
         std::count_if(
             of.pools.begin(), of.pools.end(),
             [](const PagePool& pool) { return pool.num_pages() > 0; }) == 1;
}

int64_t PageTables::Count(KvGroup group, int32_t positions) const {
  return std::min(PagesOf(positions), limits_[group]);
}

int64_t PageTables::num_used(KvGroup group) const {
  int64_t used = 0;
  for (const PagePool& pool : groups_[group].pools) used += pool.num_used();
  return used;
}

absl::Status PageTables::AdmitTo(KvGroup group, int32_t max_positions,
                                 SequencePages* table) {
  Pools& of = groups_[group];
  if (!of.present) return absl::OkStatus();
  const int64_t count = Count(group, max_positions);
  if (!table->groups[group].pages.empty()) {  // shared, in the only tier
    return of.by_need ? absl::OkStatus() : GrowIn(group, table, max_positions);
  }
  // The fastest tier if none has room: its error is as good as another's.
  size_t best = 0;
  double min = 2;
  for (size_t tier = 0; tier < kNumTiers; ++tier) {
    const PagePool& pool = of.pools[tier];
    if (pool.num_pages() == 0) continue;
    if (min == 2) best = tier;
    if (!of.by_need && pool.num_free() < count) continue;
    const double fill = static_cast<double>(pool.num_used() + count) /
                        static_cast<double>(pool.num_pages());
    if (fill < min) {
      min = fill;
      best = tier;
    }
  }
  SequencePages::OfGroup& taken = table->groups[group];
  taken.tier = static_cast<Tier>(best);
  taken.pages.reserve(static_cast<size_t>(PagesOf(max_positions)));
  if (!of.by_need) return GrowIn(group, table, max_positions);
  if (count > of.pools[best].num_pages()) {
    return ResourceExhausted("the KV cache has ", of.pools[best].num_pages(),
                             " pages, but ", count, " are needed");
  }
  return absl::OkStatus();
}

absl::Status PageTables::CheckPrefix(const SharedPrefix& prefix) const {
  const auto it = tables_.find(prefix.source);
  const int32_t length = it == tables_.end() ? 0 : it->second.length;
  if (prefix.positions <= 0 || prefix.positions % kPageTokens != 0 ||
      prefix.positions > length) {
    return InvalidArgument("the first ", prefix.positions,
                           " positions of sequence ", prefix.source.value(),
                           " can't be shared: they must be whole pages of ",
                           kPageTokens, ", and ", length, " are computed");
  }
  if (can_share()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "this stage's sequences can't share pages: its KV cache has windows, or "
      "lies in several tiers");
}

void PageTables::ShareWith(const SharedPrefix& prefix, SequencePages* table) {
  const SequencePages::OfGroup& from =
      tables_.at(prefix.source).groups[KvGroup::kAll];
  const auto pages = std::span<const int32_t>(from.pages)
                         .first(static_cast<size_t>(PagesOf(prefix.positions)));
  SequencePages::OfGroup& to = table->groups[KvGroup::kAll];
  to.tier = from.tier;
  to.pages.reserve(static_cast<size_t>(PagesOf(table->capacity)));
  to.pages.assign(pages.begin(), pages.end());
  groups_[KvGroup::kAll].pools[static_cast<size_t>(to.tier)].Share(pages);
  table->length = prefix.positions;
}

absl::Status PageTables::Keep(SequenceId id, const SharedPrefix& prefix) {
  if (tables_.contains(id)) {
    return InvalidArgument("prefix ", id.value(), " is kept already");
  }
  SLUICE_RETURN_IF_ERROR(CheckPrefix(prefix));
  // Each has a page that the others have not, or there would be no need of it.
  if (kept_ >= num_pages(KvGroup::kAll)) {
    return ResourceExhausted("prefix ", id.value(), ": this stage keeps ",
                             kept_, " prefixes already");
  }
  SequencePages table;
  table.capacity = prefix.positions;
  table.kept = true;
  ShareWith(prefix, &table);
  tables_.emplace(id, std::move(table));
  ++kept_;
  return absl::OkStatus();
}

absl::Status PageTables::Admit(SequenceId id, int32_t max_positions,
                               const SharedPrefix& prefix) {
  if (tables_.contains(id)) {
    return InvalidArgument("sequence ", id.value(), " is admitted already");
  }
  SequencePages table;
  table.capacity = max_positions;
  if (prefix.positions != 0) {
    SLUICE_RETURN_IF_ERROR(CheckPrefix(prefix));
    if (prefix.positions >= max_positions) {
      return InvalidArgument("sequence ", id.value(), " of ", max_positions,
                             " positions shares ", prefix.positions,
                             ": none is left to be computed");
    }
    ShareWith(prefix, &table);
  }
  for (const KvGroup group : kKvGroups) {
    absl::Status status = AdmitTo(group, max_positions, &table);
    if (status.ok()) continue;
    GiveBack(table);
    return Annotate(status, absl::StrCat("sequence ", id.value(), " of ",
                                         max_positions, " positions"));
  }
  tables_.emplace(id, std::move(table));
  return absl::OkStatus();
}

absl::Status PageTables::GrowIn(KvGroup group, SequencePages* table,
                                int32_t positions) {
  Pools& of = groups_[group];
  SequencePages::OfGroup& taken = table->groups[group];
  const auto have = static_cast<int64_t>(taken.pages.size());
  const int64_t all = PagesOf(positions);
  if (!of.present || all <= have) return absl::OkStatus();
  const int64_t limit = limits_[group];
  if (have < limit) {
    SLUICE_RETURN_IF_ERROR(of.pools[static_cast<size_t>(taken.tier)].Take(
        std::min(all, limit) - have, &taken.pages));
  }
  while (static_cast<int64_t>(taken.pages.size()) < all) {
    taken.pages.push_back(taken.pages[taken.pages.size() - limit]);
  }
  return absl::OkStatus();
}

absl::Status PageTables::Grow(SequencePages* table, int32_t positions) {
  std::vector<int32_t>& first = table->groups[KvGroup::kAll].pages;
  const size_t had = first.size();
  const auto next = static_cast<size_t>(table->length / kPageTokens);
  if (next < had &&
      groups_[KvGroup::kAll]
          .pools[static_cast<size_t>(table->groups[KvGroup::kAll].tier)]
          .shared(first[next])) {
    return Internal("position ", table->length,
                    " would be written to a page that is shared");
  }
  SLUICE_RETURN_IF_ERROR(GrowIn(KvGroup::kAll, table, positions));
  absl::Status status = GrowIn(KvGroup::kWindow, table, positions);
  if (!status.ok() && first.size() > had) {
    const Tier tier = table->groups[KvGroup::kAll].tier;
    groups_[KvGroup::kAll].pools[static_cast<size_t>(tier)].GiveBack(
        std::span<const int32_t>(first).subspan(had));
    first.resize(had);
  }
  return status;
}

void PageTables::GiveBack(const SequencePages& table) {
  for (const KvGroup group : kKvGroups) {
    const SequencePages::OfGroup& taken = table.groups[group];
    const auto different = static_cast<size_t>(
        std::min<int64_t>(limits_[group], std::ssize(taken.pages)));
    groups_[group].pools[static_cast<size_t>(taken.tier)].GiveBack(
        std::span<const int32_t>(taken.pages).first(different));
  }
}

absl::Status PageTables::Release(SequenceId id) {
  auto it = tables_.find(id);
  if (it == tables_.end()) {
    return InvalidArgument("sequence ", id.value(), " is not known here");
  }
  GiveBack(it->second);
  if (it->second.kept) --kept_;
  tables_.erase(it);
  return absl::OkStatus();
}

void PageTables::Clear() {
  for (const auto& [id, table] : tables_) GiveBack(table);
  tables_.clear();
  kept_ = 0;
  for (Pools& of : groups_) {
    for (PagePool& pool : of.pools) pool.Forget();
  }
}

SequencePages* PageTables::Find(SequenceId id) {
  auto it = tables_.find(id);
  return it == tables_.end() ? nullptr : &it->second;
}

}  // namespace sluice
