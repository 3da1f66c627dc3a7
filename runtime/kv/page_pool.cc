#include "runtime/kv/page_pool.h"

#include "absl/strings/str_cat.h"

namespace sluice {

PagePool::PagePool(int64_t num_pages) : num_pages_(num_pages) {
  free_.reserve(num_pages);
  for (int64_t i = num_pages - 1; i >= 0; --i) {
    free_.push_back(static_cast<int32_t>(i));
  }
}

absl::Status PagePool::Take(int64_t count, std::vector<int32_t>* pages) {
  if (count > static_cast<int64_t>(free_.size())) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the KV cache has ", free_.size(), " of ", num_pages_,
                     " pages left, but ", count, " are needed"));
  }
  pages->insert(pages->end(), free_.rbegin(), free_.rbegin() + count);
  free_.resize(free_.size() - count);
  return absl::OkStatus();
}

void PagePool::GiveBack(const std::vector<int32_t>& pages) {
  free_.insert(free_.end(), pages.rbegin(), pages.rend());
}

}  // namespace sluice
