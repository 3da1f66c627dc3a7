#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/exec/kv/kv_stream.h"
#include "runtime/exec/stage_work.h"
#include "runtime/exec/sweep_stats.h"
#include "runtime/memory/memory_budget.h"
#include "runtime/trace/trace.h"

namespace sluice {

class Backend;

// The attention of a stage, over KV wherever it lives: between a backend's
// ProjectQkv and its ProjectOut. Used by one thread.
class Attention {
 public:
  virtual ~Attention() = default;
  // Returns the max pages of a run of segments of that tier.
  virtual int64_t max_run_pages(Tier tier) const = 0;
  // Begins a step, which must stay as it is, and sets the attention slot of its
  // micro-batches. All items of the one before are finished.
  virtual void BeginStep(StepWork* step) = 0;
  // Begins to bring the KV that comes next, where there is room by now. Never
  // waits.
  virtual void ReadAhead() = 0;
  // Begins what can be begun of an item, whose q, k and v are there. Gives how
  // many of the step's items, from the first on, are to be finished before
  // another begins: all so far, or all but this one, which can wait until the
  // next one has begun.
  virtual absl::StatusOr<size_t> Begin(size_t item) = 0;
  // Finishes an item. Items finish in order.
  virtual absl::Status Finish(size_t item) = 0;
  // Whether micro-batch `k` is attended by one call, over pages that stay where
  // the backend computes.
  virtual bool fixed(size_t k) const = 0;
  // Forgets all sequences and the step, whatever state it is in.
  // REQUIRES: the backend computes nothing.
  virtual void Reset() = 0;
  virtual void AddTo(SweepStats* stats) const = 0;
};

// Attention by one backend: each run of pages comes to it through the stream of
// its tier, and those of tiers without one are somebody else's. What lies on a
// device is attended at the beginning of an item, the rest at its end, so that
// it may come meanwhile.
class LocalAttention : public Attention {
 public:
  // Pointers must outlive this. `first_layer` is the stage's; attention's time
  // is added to `seconds`; `row` may be null.
  LocalAttention(Backend* backend, int first_layer, double* seconds,
                 TraceRow* row, KvStreams kv)
      : backend_(backend),
        first_layer_(first_layer),
        seconds_(seconds),
        row_(row),
        kv_(std::move(kv)) {}

  int64_t max_run_pages(Tier tier) const override {
    return kv_.max_run_pages(tier);
  }
  void BeginStep(StepWork* step) override;
  void ReadAhead() override { kv_.ReadAhead(); }
  absl::StatusOr<size_t> Begin(size_t item) override;
  absl::Status Finish(size_t item) override;
  bool fixed(size_t k) const override;
  void Reset() override { kv_.Reset(); }
  void AddTo(SweepStats* stats) const override;

 private:
  // The item's runs of the tiers from `first` to `last`.
  absl::Status Attend(size_t item, Tier first, Tier last);
  // Attends a run whose pages are there.
  absl::Status AttendRun(size_t item, const SegmentRun& run);

  Backend* const backend_;
  const int first_layer_;
  double* const seconds_;
  TraceRow* const row_;
  KvStreams kv_;
  StepWork* step_ = nullptr;
};

}  // namespace sluice
