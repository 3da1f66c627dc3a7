#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"

namespace sluice {

// Which pages of a KV arena are free. Not thread-safe.
class PagePool {
 public:
  explicit PagePool(int64_t num_pages);

  int64_t num_pages() const { return num_pages_; }
  int64_t num_used() const {
    return num_pages_ - static_cast<int64_t>(free_.size());
  }

  // Appends `count` pages to `pages`, or none: kResourceExhausted says how many
  // are left. Pages given back last are handed out first, as they are likely to
  // be in the cache and backed by memory.
  absl::Status Take(int64_t count, std::vector<int32_t>* pages);
  void GiveBack(const std::vector<int32_t>& pages);

 private:
  int64_t num_pages_;
  std::vector<int32_t> free_;
};

}  // namespace sluice
