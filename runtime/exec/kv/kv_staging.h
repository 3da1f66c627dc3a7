#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/exec/kv/kv_stream.h"
#include "runtime/exec/stage_work.h"
#include "runtime/kv/kv_layout.h"
#include "runtime/memory/disk/io_completion.h"

namespace sluice {

// A KvStream of pages that are copied to staging memory for their attention,
// and the changed ones back. A run has a group of staging memory, with its
// pages side by side, from when it is loaded until what changed is back. Groups
// are loaded, used and stored strictly in order. What an earlier group may
// still change is not loaded before it is stored; in the step after, that may
// be a page which other sequences share now.
class KvStaging : public KvStream {
 public:
  void BeginStep(StepWork* step) override;
  void ReadAhead() override;
  absl::Status Acquire(size_t item, const SegmentRun& run) override;
  absl::Status Release() override;
  void Reset() override;
  StreamTotals totals() const override { return totals_; }

 protected:
  struct Group {
    int64_t step = 0;
    size_t item = 0;
    int32_t layer = 0;  // of the stage
    KvGroups::Layer place;
    SegmentRun run;
    std::vector<KvSegment> kv;  // the run's
    // Of those whose first pages are out of sight: the numbers of the others
    // in staging memory.
    std::vector<int32_t> numbers;
    std::byte* data = nullptr;  // the pages in staging memory
    IoCompletion in, out;
    bool released = false;
  };

  // Has `groups` of up to `group_pages` pages at a time, for runs of
  // `first_tier` and of all tiers behind it.
  KvStaging(const KvLayout& layout, size_t groups, int64_t group_pages,
            Tier first_tier, bool overlap);

  // Finds memory for a group of `bytes`: sets `data` and, where it differs,
  // where the pages are brought from (KvSegment::kv, pages). False if there is
  // no room now. Waits only if `wait`.
  virtual absl::StatusOr<bool> Place(Group* group, size_t bytes, bool wait) = 0;
  // Begin to copy pages [page, page + data.size() / page_bytes()) of a segment;
  // one part of group->in, or out, is done at its end.
  virtual void Load(Group* group, const KvSegment& kv, int32_t page,
                    std::span<std::byte> data) = 0;
  virtual void Store(Group* group, const KvSegment& kv, int32_t page,
                     std::span<const std::byte> data) = 0;

  size_t page_bytes() const { return page_bytes_; }
  StepWork& step() { return *step_; }
  // The number of groups that have memory.
  size_t num_groups() const { return num_groups_; }
  Group& group(size_t i) { return *groups_[(oldest_ + i) % groups_.size()]; }
  // Returns the group acquired last.
  Group& acquired() { return group(num_acquired_ - 1); }

  StreamTotals totals_;

 private:
  absl::StatusOr<bool> LoadNext(bool wait);
  absl::Status Reclaim(bool wait);
  static void NumberPages(Group* group);
  int32_t FirstToStore(const Group& group, const KvSegment& kv) const;
  absl::StatusOr<bool> AwaitWriters(int32_t layer,
                                    std::span<const KvSegment> kv);

  const size_t page_bytes_;
  const Tier first_tier_;
  const bool overlap_;
  std::vector<int32_t> iota_;  // page numbers within a group
  StepWork* step_ = nullptr;
  int64_t step_number_ = 0;
  size_t next_item_ = 0, next_run_ = 0;  // to be loaded next
  // The groups, a ring.
  std::vector<std::unique_ptr<Group>> groups_;
  size_t oldest_ = 0, num_groups_ = 0, num_acquired_ = 0;
};

}  // namespace sluice
