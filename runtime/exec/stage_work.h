#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/step_plan.h"
#include "common/types.h"
#include "runtime/exec/plan_check.h"
#include "runtime/exec/step_inputs.h"
#include "runtime/kv/batch_view.h"
#include "runtime/kv/kv_groups.h"
#include "runtime/kv/sequence_pages.h"
#include "runtime/memory/memory_budget.h"

namespace sluice {

// The KV pages of a segment, in the tier that its sequence has.
struct KvSegment {
  SequenceId sequence;
  std::span<const int32_t> pages;  // page numbers, to the last new position's
  int32_t first_page = 0;          // those before it are out of sight
  int32_t start = 0;               // positions that are there
  int32_t num_tokens = 0;          // positions that will be added
  // Page 0 of the layer at hand, once a KvStream knows it.
  std::byte* kv = nullptr;

  // The pages that are in sight.
  int32_t num_pages() const {
    return static_cast<int32_t>(pages.size()) - first_page;
  }
};

// Consecutive segments of a micro-batch whose pages lie in one tier: they are
// attended in one call, and staged together.
struct SegmentRun {
  int32_t first = 0;
  int32_t count = 0;
  Tier tier = Tier::kHost;
  int64_t pages = 0;
};

// The KV of a micro-batch's segments in a group of layers.
struct KvWork {
  // The segments' pages where they live, whatever BatchWork::segments shows.
  std::vector<KvSegment> segments;
  std::vector<SegmentRun> runs;  // the device's first, the disk's last
};

// A micro-batch of the step at hand.
struct BatchWork {
  std::vector<SegmentView> segments;
  ByKvGroup<KvWork> kv;                // empty for a group without layers
  std::vector<int32_t> padded_tokens;  // without packing
  BatchView view;
  // The residual stream [view.rows, hidden] where it is computed, from
  // Activations::Acquire on until Release.
  float* rows = nullptr;
};

// The work of one step, as the sweep and all streams of data see it. Allocates
// only where a step is larger than those before.
struct StepWork {
  // A micro-batch's part of a layer, which counts from the stage's first.
  struct Item {
    int32_t layer = 0;
    int32_t batch = 0;
  };

  // `groups` must outlive this.
  explicit StepWork(const KvGroups* groups) : groups_(*groups) {}

  // Begins another step, whose streams begin as `inputs` (see
  // StageExecutor::RunStep).
  void Begin(StepInputs* inputs);
  // Admits the next micro-batch: its sequences get pages for its tokens, and
  // their lengths move past these. A run gets no more pages than
  // `max_run_pages` has for its tier. kInvalidArgument says what does not fit:
  // a sequence that is on disk, or has a window, has one segment in a step.
  // kResourceExhausted names a sequence for which no page is left.
  absl::Status Admit(const MicroBatch& batch, const PlanLimits& limits,
                     const std::array<int64_t, kNumTiers>& max_run_pages,
                     PageTables* tables);
  // Sets items and turns, as of Schedule. Each micro-batch has a turn at the
  // end, in the head, or, with `added`, so that something is added to it.
  void Order(int32_t layers, bool row_by_row, bool head, bool added);

  // Takes micro-batch k's input, which must be [rows, hidden_size]; waits for
  // it. kInvalidArgument if it is not.
  absl::StatusOr<std::shared_ptr<ActivationBuffer>> TakeInput(
      size_t k, int64_t hidden_size);

  const KvGroups& groups() const { return groups_; }
  BatchWork& batch_of(size_t item) { return batches[items[item].batch]; }
  KvGroups::Layer layer_of(size_t item) const {
    return groups_.layers[items[item].layer];
  }
  // The item's KV, in its layer's group.
  const KvWork& kv_of(size_t item) const {
    return batches[items[item].batch].kv[layer_of(item).group];
  }
  // Whether a turn is the first one of its micro-batch.
  bool begins(size_t turn) const {
    return turn < items.size() && items[turn].layer == 0;
  }
  // Whether a turn is its micro-batch's in the head.
  bool in_head(size_t turn) const { return head_ && turn >= items.size(); }

  size_t num_batches = 0;
  std::vector<BatchWork> batches;  // [num_batches] and some to be used again
  std::vector<Item> items;         // in the order in which they are computed
  // The micro-batch of each item, and then those of the turns at the end.
  std::vector<int32_t> turns;
  StepInputs* inputs = nullptr;  // null on the first stage

 private:
  // Adds a segment to a group's runs.
  void AdmitTo(KvGroup group, const Segment& segment,
               const SequencePages& table,
               const std::array<int64_t, kNumTiers>& max_run_pages, KvWork* kv);

  const KvGroups& groups_;
  bool head_ = false;
  absl::flat_hash_set<SequenceId> alone_;  // that have one segment in the step
};

}  // namespace sluice
