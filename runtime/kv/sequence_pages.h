#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "common/types.h"
#include "runtime/kv/kv_layout.h"
#include "runtime/kv/page_pool.h"
#include "runtime/memory/memory_budget.h"

namespace sluice {

// One sequence's share of the KV cache: pages of one tier. Position p lies in
// pages[p / kPageTokens]; a page number holds for all layers.
struct SequencePages {
  Tier tier = Tier::kHost;
  std::vector<int32_t> pages;
  int32_t length = 0;    // positions written so far
  int32_t capacity = 0;  // positions reserved
};

// The page tables of all sequences of a stage. Not thread-safe.
class PageTables {
 public:
  // By tier: how many pages it has.
  using TierPages = std::array<int64_t, kNumTiers>;
  // `longest`: most positions of a sequence.
  PageTables(const TierPages& pages, int32_t longest);

  // Pages that callers may count on, wherever they lie: as long as the
  // sequences admitted take no more in all, each finds room within one tier.
  // That is all of them if there is one tier, and a sequence fewer for each
  // further one.
  int64_t num_pages() const { return num_pages_; }
  int64_t num_used() const;
  const PagePool& pool(Tier tier) const {
    return pools_[static_cast<size_t>(tier)];
  }

  // Reserves pages for `max_tokens` positions in the tier that then is the
  // least full of those with room, so that the tiers' shares of the sequences
  // follow their shares of the pages. kInvalidArgument if the sequence is known
  // already; kResourceExhausted if there are too few pages.
  absl::Status Admit(SequenceId id, int32_t max_tokens);
  // kInvalidArgument for an unknown sequence.
  absl::Status Release(SequenceId id);
  void Clear();
  // Null for an unknown sequence. Valid until the next Admit or Release.
  SequencePages* Find(SequenceId id);

  size_t size() const { return tables_.size(); }

 private:
  std::array<PagePool, kNumTiers> pools_;
  int64_t num_pages_ = 0;
  absl::flat_hash_map<SequenceId, SequencePages> tables_;
};

}  // namespace sluice
