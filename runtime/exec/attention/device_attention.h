#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "absl/status/status.h"
#include "runtime/exec/attention/host_attention.h"
#include "runtime/exec/kv/device_kv_stager.h"
#include "runtime/exec/kv/kv_stager.h"
#include "runtime/exec/stage_work.h"
#include "runtime/exec/sweep_stats.h"
#include "runtime/kv/kv_arena.h"
#include "runtime/memory/memory_budget.h"
#include "runtime/trace/trace.h"

namespace sluice {

class Backend;

// Attention over KV on three tiers, for a device with memory of its own: pages
// on the device are attended there. Those in host memory are attended on the
// host, or copied to the device and, where they changed, back: as the policy's
// attention site says. Those on disk come into host memory first, and are then
// like those. Used by one thread.
class DeviceAttention {
 public:
  struct Options {
    // Pointers must outlive this; null: there are none of these.
    Backend* backend = nullptr;  // the device's
    const KvArena* device_kv = nullptr;
    const KvArena* host_kv = nullptr;
    KvStager* disk = nullptr;
    SweepStats* stats = nullptr;
    TraceRow* row = nullptr;
    int first_layer = 0;
    int slots = 1;        // attention slots
    bool overlap = true;  // load before it is needed
    // One of them, if anything is not on the device: where it is attended.
    std::unique_ptr<HostAttention> on_host;
    std::unique_ptr<DeviceKvStager> staged;
  };
  explicit DeviceAttention(Options options) : options_(std::move(options)) {}

  // Most pages of a run of segments of that tier.
  int64_t MaxRunPages(Tier tier) const;
  bool OnHost(Tier tier) const {
    return tier != Tier::kDevice && options_.on_host != nullptr;
  }
  // BatchView::attention_slot of the item: not that of the one before.
  int32_t Slot(size_t item) const {
    return static_cast<int32_t>(item % options_.slots);
  }

  // A step's work: of each micro-batch, and the (layer, micro-batch) items in
  // the order of their calls.
  void BeginStep(std::span<StageWork> work,
                 std::span<const std::pair<int32_t, int32_t>> order);
  // Begins what of an item's attention is the host's, and does the part of what
  // lies on the device already. Its q, k and v are there.
  absl::Status Begin(size_t item);
  // The rest. Items finish in order; one more may have begun meanwhile.
  absl::Status Finish(size_t item);
  // Forgets the step, whatever state it is in.
  void Reset();

  double host_seconds() const {
    return options_.on_host == nullptr ? 0 : options_.on_host->busy_seconds();
  }

 private:
  absl::Status Attend(size_t item, const SegmentRun& run);
  absl::Status FinishStaged(size_t item);
  // Loads the host's runs up to this one of this item, in order. With `wait`
  // all; else as far as there is room.
  absl::Status LoadUpTo(size_t item, size_t run, bool wait);

  const Options options_;
  std::span<StageWork> work_;
  std::span<const std::pair<int32_t, int32_t>> order_;
  size_t next_item_ = 0, next_run_ = 0;  // to be loaded
};

}  // namespace sluice
