#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "runtime/exec/stage_work.h"
#include "runtime/exec/sweep_stats.h"
#include "runtime/kv/kv_arena.h"
#include "runtime/memory/memory_budget.h"

namespace sluice {

// Brings the KV pages of the sequences of one or two tiers to where they are
// attended, run by run, and puts away what changed. A step's runs are acquired
// strictly in the order of its items and, within one, in that of
// KvWork::runs; each is released before the next. Used by one thread at a
// time.
class KvStream {
 public:
  virtual ~KvStream() = default;
  // Returns the max pages of a run of that tier.
  virtual int64_t max_run_pages(Tier tier) const {
    return std::numeric_limits<int64_t>::max();
  }
  // Begins a step, which must stay as it is. All runs of the one before were
  // released.
  virtual void BeginStep(StepWork* step) = 0;
  // Begins to bring what comes next, as far as there is room. Never waits; an
  // error shows when the run is acquired.
  virtual void ReadAhead() {}
  // Waits until a run of the item is there, and points its segments at its
  // pages (SegmentView::kv and pages).
  virtual absl::Status Acquire(size_t item, const SegmentRun& run) = 0;
  // Ends the run acquired last: begins to put away its new positions.
  virtual absl::Status Release() { return absl::OkStatus(); }
  // Forgets all sequences and the step, whatever state it is in.
  // REQUIRES: nobody computes with the pages.
  virtual void Reset() = 0;
  virtual StreamTotals totals() const { return {}; }
};

// Pages that are attended where they live.
class ResidentKv : public KvStream {
 public:
  explicit ResidentKv(KvArenas arenas) : arenas_(std::move(arenas)) {}
  void BeginStep(StepWork* step) override { step_ = step; }
  absl::Status Acquire(size_t item, const SegmentRun& run) override {
    std::byte* const base = arenas_.LayerBase(step_->layer_of(item));
    const KvWork& kv = step_->kv_of(item);
    BatchWork& work = step_->batch_of(item);
    for (int32_t s = run.first; s < run.first + run.count; ++s) {
      work.segments[s].kv = base;
      work.segments[s].pages = kv.segments[s].pages;
    }
    return absl::OkStatus();
  }
  void Reset() override { arenas_.Trim(); }

 private:
  const KvArenas arenas_;
  StepWork* step_ = nullptr;
};

// The streams of a stage's KV pages, by the tier in which sequences have them.
class KvStreams {
 public:
  // Adds the stream of the tiers from `first` to `last`.
  void Add(std::unique_ptr<KvStream> stream, Tier first, Tier last) {
    for (auto t = static_cast<size_t>(first); t <= static_cast<size_t>(last);
         ++t) {
      of_tier_[t] = stream.get();
    }
    all_.push_back(std::move(stream));
  }
  bool empty() const { return all_.empty(); }
  // Returns null for a tier without a stream.
  KvStream* of(Tier tier) const { return of_tier_[static_cast<size_t>(tier)]; }
  int64_t max_run_pages(Tier tier) const {
    return of(tier) == nullptr ? std::numeric_limits<int64_t>::max()
                               : of(tier)->max_run_pages(tier);
  }
  void BeginStep(StepWork* step) {
    for (const auto& stream : all_) stream->BeginStep(step);
  }
  void ReadAhead() {
    for (const auto& stream : all_) stream->ReadAhead();
  }
  void Reset() {
    for (const auto& stream : all_) stream->Reset();
  }
  StreamTotals totals() const {
    StreamTotals sum;
    for (const auto& stream : all_) sum += stream->totals();
    return sum;
  }

 private:
  std::vector<std::unique_ptr<KvStream>> all_;
  std::array<KvStream*, kNumTiers> of_tier_ = {};
};

}  // namespace sluice
