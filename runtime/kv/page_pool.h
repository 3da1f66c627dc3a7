#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"

namespace sluice {

// Tells which pages of one tier's KV cache are free, and how many owners the
// others have. Not thread-safe.
class PagePool {
 public:
  explicit PagePool(int64_t num_pages = 0);

  int64_t num_pages() const { return num_pages_; }
  int64_t num_used() const { return num_pages_ - num_free_; }
  int64_t num_free() const { return num_free_; }
  // All pages that were ever taken, since Forget, are below this one: low ones
  // are given first, so that what nobody needed stays untouched.
  int64_t touched() const { return touched_; }
  // REQUIRES: all are free.
  void Forget() { touched_ = 0; }

  // Appends `count` pages to `pages`, or none: kResourceExhausted says how many
  // are left. Takes as few runs of consecutive pages as the free ones allow
  // (the first run that is long enough, else the longest ones), so that a disk
  // reads a sequence in large requests.
  absl::Status Take(int64_t count, std::vector<int32_t>* pages);
  // Gives each of the pages one more owner. REQUIRES: they are taken.
  void Share(std::span<const int32_t> pages);
  // Takes one owner from each of the pages. Those without owners are free.
  void GiveBack(std::span<const int32_t> pages);
  // Whether a page has several owners: nobody may write to it.
  bool shared(int32_t page) const { return more_owners_.contains(page); }

 private:
  void Add(int32_t begin, int32_t end);

  int64_t num_pages_;
  int64_t num_free_;
  int64_t touched_ = 0;
  std::map<int32_t, int32_t> free_;  // runs: begin to end, never adjacent
  // The owners beyond the first of pages that have some.
  absl::flat_hash_map<int32_t, int32_t> more_owners_;
};

}  // namespace sluice
