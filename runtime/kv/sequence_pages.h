#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "common/step_plan.h"
#include "common/types.h"
#include "runtime/kv/kv_groups.h"
#include "runtime/kv/kv_layout.h"
#include "runtime/kv/page_pool.h"
#include "runtime/memory/memory_budget.h"

namespace sluice {

// One sequence's share of the KV cache: of each group of layers, pages of one
// tier. Position p lies in pages[p / kPageTokens]; a page number holds for all
// layers of the group.
struct SequencePages {
  struct OfGroup {
    Tier tier = Tier::kHost;
    // Never moves in memory while the sequence lives: its views stay valid
    // while it grows. In a window the first ones come again and again: what
    // they held before is out of sight.
    std::vector<int32_t> pages;
  };
  ByKvGroup<OfGroup> groups;
  int32_t length = 0;    // positions written so far
  int32_t capacity = 0;  // positions that it may come to
  bool kept = false;     // a prefix: nothing is ever written to it
};

// The page tables of all sequences of a stage: which pages each sequence has,
// of each group of layers in the one tier that it was given at admission.
//
// If all pages of a group lie in one tier, and it is not the disk, sequences
// take them by need: none at admission, and one more whenever the next position
// has none. Sequences at different positions then need the average of their
// sizes, not the sum of the greatest ones (FlexGen, appendix A.2.1: the
// diagonal block schedule). Otherwise a sequence takes at admission all that
// `max_positions` positions need, and keeps them:
// * With several tiers it can't change tiers later: room in another one would
//   be of no use to a sequence whose own tier has filled up meanwhile.
// * On disk only pages taken together follow each other, to be read in large
//   requests.
//
// Sequences may share the pages of their first positions, by whole pages, which
// nobody writes to. Pages are counted (PagePool): they are free when the last
// of their owners is gone. Keep() makes an owner that outlives the sequence
// that computed them. Pages of group kWindow are not shared: a sequence writes
// over them as it goes on, so that those which a prefix ends with are soon no
// longer there.
//
// Not thread-safe.
class PageTables {
 public:
  // `longest`: the max positions of a sequence. `window_pages`: those that one
  // has of group kWindow, if that has any (KvGroups::window_pages).
  PageTables(const GroupPages& pages, int32_t longest, int32_t window_pages);

  // Whether the pages of all groups are taken by need.
  bool by_need() const;
  // Whether sequences can share pages: all are of group kAll and lie in one
  // tier, so that who shares has room in the tier where the others are.
  bool can_share() const;

  // Returns the pages of a group that callers may count on, wherever they lie:
  // if taken by need, each sequence gets its page as long as the positions of
  // all need no more; else each finds room within one tier as long as the
  // `max_positions` of all sequences admitted need no more. These are all pages
  // if there is one tier, and about a sequence's fewer for each further one.
  int64_t num_pages(KvGroup group) const { return groups_[group].num_pages; }
  // Returns the pages of group kWindow that a sequence has; 0 if that group has
  // none.
  int32_t window_pages() const { return limits_[KvGroup::kWindow]; }
  // Returns the number of a group's pages taken by sequences.
  int64_t num_used(KvGroup group) const;
  const PagePool& pool(KvGroup group, Tier tier) const {
    return groups_[group].pools[static_cast<size_t>(tier)];
  }

  // For each group, makes an empty table if pages are taken by need; else takes
  // pages for `max_positions` positions in the tier that then is the least full
  // of those with room, so that the tiers' shares of the sequences follow their
  // shares of the pages. kInvalidArgument if the sequence is known already;
  // kResourceExhausted if `max_positions` positions need more pages than there
  // are, or, unless by need, than are left.
  //
  // With a prefix, the sequence begins with that one's positions, whose pages
  // it shares. kInvalidArgument also unless they can be shared, are whole pages
  // that the prefix's source has written, and leave a position to be computed.
  absl::Status Admit(SequenceId id, int32_t max_positions,
                     const SharedPrefix& prefix = {});
  // Keeps the pages of another one's first positions as a prefix, until its
  // Release. kInvalidArgument as with Admit.
  absl::Status Keep(SequenceId id, const SharedPrefix& prefix);
  // Takes the pages that the first `positions` positions lack.
  // REQUIRES: positions <= table->capacity, and the table is one of these.
  // kResourceExhausted if too few are left; the table is then as it was.
  // kInternal if the next position's page has other owners.
  absl::Status Grow(SequencePages* table, int32_t positions);
  // kInvalidArgument for an unknown sequence.
  absl::Status Release(SequenceId id);
  void Clear();
  // Null for an unknown sequence. Valid until the next Admit or Release.
  SequencePages* Find(SequenceId id);

  // The number of sequences, kept prefixes not among them.
  size_t size() const { return tables_.size() - static_cast<size_t>(kept_); }
  // The number of kept prefixes.
  int64_t kept() const { return kept_; }

 private:
  struct Pools {
    std::array<PagePool, kNumTiers> pools;
    int64_t num_pages = 0;
    bool by_need = false;
    bool present = false;
  };

  // The different pages that `positions` positions take.
  int64_t Count(KvGroup group, int32_t positions) const;
  absl::Status AdmitTo(KvGroup group, int32_t max_positions,
                       SequencePages* table);
  absl::Status CheckPrefix(const SharedPrefix& prefix) const;
  // Makes the pages of the prefix the first ones of a table without pages.
  void ShareWith(const SharedPrefix& prefix, SequencePages* table);
  absl::Status GrowIn(KvGroup group, SequencePages* table, int32_t positions);
  void GiveBack(const SequencePages& table);

  ByKvGroup<Pools> groups_;
  ByKvGroup<int32_t> limits_;  // pages of a sequence
  absl::flat_hash_map<SequenceId, SequencePages> tables_;
  int64_t kept_ = 0;  // of these
};

// Calls fn(first, end) for each run of pages [first, end) within [begin, end)
// of a sequence whose numbers follow each other: each run is one request.
template <typename Fn>
void ForEachPageRun(std::span<const int32_t> pages, int32_t begin, int32_t end,
                    Fn fn) {
  for (int32_t i = begin; i < end;) {
    int32_t next = i + 1;
    while (next < end && pages[next] == pages[next - 1] + 1) ++next;
    fn(i, next);
    i = next;
  }
}

}  // namespace sluice
