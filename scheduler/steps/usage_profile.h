#pragma once

#include <cstdint>
#include <deque>
#include <limits>

namespace sluice {

// The number of KV pages that the sequences of one block may hold in each of
// its coming steps, if none ends before its maximum. Steps count in the block's
// own time: one for each step that it runs. Thread-compatible.
//
// A sequence that decodes moves on by one position in each step, so its future
// is exact: it holds the pages of its position, one position more each step,
// and after the step that computes its last position none. In prefill it may be
// delayed; then it counts as having grown as early, and as ending as late, as
// it may.
class UsageProfile {
 public:
  // A sequence's use: ceil(known / page_tokens) pages from the present step on;
  // from step `grows` on, where it is at position `known`, one position more
  // for each step, up to `max`; none from step `end` on.
  struct Use {
    int64_t grows = 0;
    int64_t end = 0;
    int32_t known = 0;  // positions
    int32_t max = 0;
    int32_t shared = 0;  // the first pages, which are counted elsewhere

    friend bool operator==(const Use&, const Use&) = default;
  };

  // No sequence holds more than `max_pages`, however long it is.
  explicit UsageProfile(int32_t page_tokens,
                        int64_t max_pages = std::numeric_limits<int64_t>::max())
      : page_tokens_(page_tokens), max_pages_(max_pages) {}

  // Ordinal of the present step: formed last, or to be formed if none was.
  int64_t now() const { return now_; }
  // Makes the step after the present one the present one. O(1).
  void Advance();

  // Both are O(steps until use.end).
  void Add(const Use& use) { Count(use, 1); }
  void Remove(const Use& use) { Count(use, -1); }

  // The most pages in any step from the present one on; with `use` added.
  // O(steps that lie ahead).
  int64_t Peak() const;
  int64_t PeakWith(const Use& use) const;

 private:
  int64_t PagesAt(const Use& use, int64_t step) const;
  void Count(const Use& use, int64_t sign);

  int32_t page_tokens_;
  int64_t max_pages_;
  int64_t now_ = 0;
  std::deque<int64_t> pages_;  // of step now_ + index; none beyond
  mutable int64_t peak_ = 0;   // -1: to be found
};

// Pages in which a sequence that is computed one position a step, from `known`
// to `last` positions, lies in these steps together.
int64_t PageSteps(int32_t known, int32_t last, int32_t page_tokens);

}  // namespace sluice
