#pragma once

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "common/types.h"
#include "runtime/kv/page_pool.h"

namespace sluice {

// Positions of a sequence's K and V that one page holds. A multiple of every
// vector width, so that a page's scores are whole vectors.
inline constexpr int32_t kPageTokens = 32;

// One sequence's share of the KV cache. Position p lies in pages[p /
// kPageTokens]; a page number holds for all layers.
struct SequencePages {
  std::vector<int32_t> pages;
  int32_t length = 0;    // positions written so far
  int32_t capacity = 0;  // positions reserved
};

// The page tables of all sequences of a stage. Not thread-safe.
class PageTables {
 public:
  explicit PageTables(int64_t num_pages) : pool_(num_pages) {}

  // Reserves pages for `max_tokens` positions. kInvalidArgument if the sequence
  // is known already; kResourceExhausted if there are too few pages.
  absl::Status Admit(SequenceId id, int32_t max_tokens);
  // kInvalidArgument for an unknown sequence.
  absl::Status Release(SequenceId id);
  void Clear();
  // Null for an unknown sequence. Valid until the next Admit or Release.
  SequencePages* Find(SequenceId id);

  const PagePool& pool() const { return pool_; }
  size_t size() const { return tables_.size(); }

 private:
  PagePool pool_;
  absl::flat_hash_map<SequenceId, SequencePages> tables_;
};

}  // namespace sluice
