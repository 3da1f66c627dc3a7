#include "runtime/kv/page_pool.h"

#include <algorithm>
#include <iterator>

#include "common/status_macros.h"

namespace sluice {

PagePool::PagePool(int64_t num_pages)
    : num_pages_(num_pages), num_free_(num_pages) {
  if (num_pages > 0) free_.emplace(0, static_cast<int32_t>(num_pages));
}

absl::Status PagePool::Take(int64_t count, std::vector<int32_t>* pages) {
  if (count > num_free_) {
    return ResourceExhausted("the KV cache has ", num_free_, " of ", num_pages_,
                             " pages left, but ", count, " are needed");
  }
  num_free_ -= count;
  while (count > 0) {
    auto best = free_.begin();
    for (auto run = free_.begin(); run != free_.end(); ++run) {
      if (run->second - run->first >= count) {
        best = run;
        break;
      }
      if (run->second - run->first > best->second - best->first) best = run;
    }
    const int32_t begin = best->first;
    const int32_t run_end = best->second;
    const int32_t end = static_cast<int32_t>(
        std::min<int64_t>(run_end, int64_t{begin} + count));
    free_.erase(best);
    if (end < run_end) free_.emplace(end, run_end);
    for (int32_t page = begin; page < end; ++page) pages->push_back(page);
    touched_ = std::max<int64_t>(touched_, end);
    count -= end - begin;
  }
  return absl::OkStatus();
}

void PagePool::Share(std::span<const int32_t> pages) {
  for (const int32_t page : pages) ++more_owners_[page];
}

void PagePool::GiveBack(std::span<const int32_t> pages) {
  // Whether nobody else owns the page.
  const auto give_back = [&](int32_t page) {
    const auto more = more_owners_.find(page);
    if (more == more_owners_.end()) return true;
    if (--more->second == 0) more_owners_.erase(more);
    return false;
  };
  for (size_t i = 0; i < pages.size();) {
    if (!give_back(pages[i])) {
      ++i;
      continue;
    }
    size_t end = i + 1;
    bool ends = false;
    while (end < pages.size() && pages[end] == pages[end - 1] + 1 && !ends) {
      ends = !give_back(pages[end]);
      if (!ends) ++end;
    }
    Add(pages[i], pages[end - 1] + 1);
    num_free_ += static_cast<int64_t>(end - i);
    i = ends ? end + 1 : end;
  }
}

void PagePool::Add(int32_t begin, int32_t end) {
  auto next = free_.lower_bound(begin);
  if (next != free_.end() && next->first == end) {
    end = next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    auto before = std::prev(next);
    if (before->second == begin) {
      before->second = end;
      return;
    }
  }
  free_.emplace(begin, end);
}

}  // namespace sluice
