#include "runtime/exec/kv/kv_staging.h"

#include <algorithm>
#include <numeric>

#include "common/status_macros.h"
#include "runtime/exec/timed.h"
#include "runtime/kv/sequence_pages.h"

namespace sluice {
namespace {

// Calls copy(segment, page, offset, bytes) for each run of pages whose numbers
// follow each other, of the pages [begin(segment), end(segment)) of each
// segment, all of which are in sight: page numbers and the bytes of a group.
// Announces all of them at once, so that `done` can't be complete in between.
template <typename Begin, typename End, typename Copy>
void CopyPages(std::span<const KvSegment> segments, size_t page_bytes,
               IoCompletion* done, Begin begin, End end, Copy copy) {
  done->Expect(1);
  size_t offset = 0;
  for (const KvSegment& kv : segments) {
    ForEachPageRun(kv.pages, begin(kv), end(kv),
                   [&](int32_t first, int32_t last) {
                     done->Expect(1);
                     copy(kv, kv.pages[first],
                          offset + (first - kv.first_page) * page_bytes,
                          (last - first) * page_bytes);
                   });
    offset += kv.num_pages() * page_bytes;
  }
  done->Done(absl::OkStatus());
}

}  // namespace

KvStaging::KvStaging(const KvLayout& layout, size_t groups, int64_t group_pages,
                     Tier first_tier, bool overlap)
    : page_bytes_(layout.layer_page_bytes()),
      first_tier_(first_tier),
      overlap_(overlap),
      iota_(group_pages) {
  std::iota(iota_.begin(), iota_.end(), 0);
  for (size_t i = 0; i < groups; ++i) {
    groups_.push_back(std::make_unique<Group>());
  }
}

void KvStaging::BeginStep(StepWork* step) {
  step_ = step;
  ++step_number_;
  next_item_ = next_run_ = 0;
}

// Gives back the memory of groups that are stored, oldest first; waits for the
// oldest if `wait`.
absl::Status KvStaging::Reclaim(bool wait) {
  while (num_acquired_ > 0) {
    Group& oldest = group(0);
    if (!oldest.released || (!wait && !oldest.out.ready())) break;
    wait = false;
    SLUICE_RETURN_IF_ERROR(WaitTimed(oldest.out, &totals_.stall_seconds));
    ++oldest_;
    --num_groups_;
    --num_acquired_;
  }
  return absl::OkStatus();
}

// Returns false if a group that is still in use will change what these segments
// want to load.
absl::StatusOr<bool> KvStaging::AwaitWriters(int32_t layer,
                                             std::span<const KvSegment> kv) {
  for (size_t i = 0; i < num_groups_; ++i) {
    Group& other = group(i);
    if (other.layer != layer || (other.released && other.out.ready())) continue;
    if (other.step != step_number_) {
      SLUICE_RETURN_IF_ERROR(WaitTimed(other.out, &totals_.stall_seconds));
      continue;
    }
    // A sequence on disk has one segment in a step.
    if (!other.released && other.run.tier == Tier::kDisk) continue;
    const auto same = [](const KvSegment& a, const KvSegment& b) {
      return a.sequence == b.sequence;
    };
    if (std::find_first_of(kv.begin(), kv.end(), other.kv.begin(),
                           other.kv.end(), same) == kv.end()) {
      continue;
    }
    if (!other.released) return false;
    SLUICE_RETURN_IF_ERROR(WaitTimed(other.out, &totals_.stall_seconds));
  }
  return true;
}

// Begins to load the next run. Returns false if there is none, or no room.
absl::StatusOr<bool> KvStaging::LoadNext(bool wait) {
  const SegmentRun* run = nullptr;
  for (; next_item_ < step_->items.size(); ++next_item_, next_run_ = 0) {
    const std::vector<SegmentRun>& runs = step_->kv_of(next_item_).runs;
    while (next_run_ < runs.size() && runs[next_run_].tier < first_tier_) {
      ++next_run_;
    }
    if (next_run_ == runs.size()) continue;
    run = &runs[next_run_];
    break;
  }
  if (run == nullptr) return false;
  SLUICE_RETURN_IF_ERROR(Reclaim(false));
  if (num_groups_ == groups_.size()) return false;
  const int32_t layer = step_->items[next_item_].layer;
  const auto kv = std::span<const KvSegment>(step_->kv_of(next_item_).segments)
                      .subspan(run->first, run->count);
  SLUICE_ASSIGN_OR_RETURN(const bool written, AwaitWriters(layer, kv));
  if (!written) return false;
  Group& next = group(num_groups_);
  next.step = step_number_;
  next.item = next_item_;
  next.layer = layer;
  next.place = step_->layer_of(next_item_);
  next.run = *run;
  next.kv.assign(kv.begin(), kv.end());
  next.released = false;
  SLUICE_ASSIGN_OR_RETURN(
      const bool placed,
      Place(&next, static_cast<size_t>(run->pages) * page_bytes_, wait));
  if (!placed) return false;
  ++num_groups_;
  ++next_run_;
  CopyPages(
      next.kv, page_bytes_, &next.in,
      [](const KvSegment& s) { return s.first_page; },
      [](const KvSegment& s) { return PagesOf(s.start); },
      [&](const KvSegment& s, int32_t page, size_t at, size_t bytes) {
        Load(&next, s, page, {next.data + at, bytes});
      });
  return true;
}

void KvStaging::ReadAhead() {
  if (!overlap_ || step_ == nullptr) return;
  for (;;) {
    const absl::StatusOr<bool> loaded = LoadNext(false);
    if (!loaded.ok() || !*loaded) return;
  }
}

// Pages out of sight get a number, too, which nobody looks up.
void KvStaging::NumberPages(Group* group) {
  group->numbers.clear();
  for (const KvSegment& kv : group->kv) {
    if (kv.first_page == 0) continue;
    for (int32_t page = 0; page < std::ssize(kv.pages); ++page) {
      group->numbers.push_back(std::max(0, page - kv.first_page));
    }
  }
}

absl::Status KvStaging::Acquire(size_t item, const SegmentRun& run) {
  while (num_acquired_ == num_groups_) {
    SLUICE_ASSIGN_OR_RETURN(const bool loaded, LoadNext(true));
    if (loaded) break;
    const size_t before = num_groups_;
    SLUICE_RETURN_IF_ERROR(Reclaim(true));
    if (num_groups_ == before) {
      return absl::InternalError("no group of KV is left, or it does not fit");
    }
  }
  Group& next = group(num_acquired_);
  if (next.item != item || next.run.first != run.first) {
    return absl::InternalError("groups of KV out of order");
  }
  ++num_acquired_;
  SLUICE_RETURN_IF_ERROR(WaitTimed(next.in, &totals_.stall_seconds));
  BatchWork& work = step_->batch_of(item);
  NumberPages(&next);
  std::byte* at = next.data;
  size_t numbered = 0;
  for (int32_t i = 0; i < run.count; ++i) {
    SegmentView& segment = work.segments[run.first + i];
    const KvSegment& kv = next.kv[i];
    const size_t pages = kv.pages.size();
    segment.kv = at;
    if (kv.first_page == 0) {
      segment.pages = std::span<const int32_t>(iota_).first(pages);
    } else {
      segment.pages =
          std::span<const int32_t>(next.numbers).subspan(numbered, pages);
      numbered += pages;
    }
    at += kv.num_pages() * page_bytes_;
  }
  ReadAhead();
  return absl::OkStatus();
}

// Of a segment longer than its window only what the next ones see has a place.
int32_t KvStaging::FirstToStore(const Group& group, const KvSegment& kv) const {
  const int32_t first_new = kv.start / kPageTokens;
  if (group.place.group == KvGroup::kAll) return first_new;
  return std::max(first_new, static_cast<int32_t>(kv.pages.size()) -
                                 step_->groups().window_pages());
}

absl::Status KvStaging::Release() {
  Group& done = acquired();
  done.released = true;
  CopyPages(
      done.kv, page_bytes_, &done.out,
      [&](const KvSegment& s) { return FirstToStore(done, s); },
      [](const KvSegment& s) { return PagesOf(s.start + s.num_tokens); },
      [&](const KvSegment& s, int32_t page, size_t at, size_t bytes) {
        Store(&done, s, page, {done.data + at, bytes});
      });
  ReadAhead();
  return absl::OkStatus();
}

void KvStaging::Reset() {
  for (const auto& each : groups_) {
    each->in.Wait().IgnoreError();
    each->out.Wait().IgnoreError();
  }
  step_ = nullptr;
  oldest_ = num_groups_ = num_acquired_ = 0;
}

}  // namespace sluice
