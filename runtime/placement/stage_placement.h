#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/policy.h"
#include "common/tier.h"
#include "runtime/placement/buffer_sizes.h"
#include "runtime/placement/stage_sizes.h"
#include "runtime/placement/weight_placement.h"

// The placement of a stage's data, and the exact bytes that each tier then
// holds. A worker loads a stage by this, and a planner plans by it.

namespace sluice {

// The bytes that are free on each tier. No disk: 0.
using TierLimits = std::array<uint64_t, kNumTiers>;

// The charges of a stage to one tier, in their order.
class TierUse {
 public:
  void Hold(absl::string_view name, uint64_t bytes);
  // Counts bytes that are taken beside all that is held so far, for a time.
  void Pass(absl::string_view name, uint64_t bytes);

  // Returns the bytes held once the stage is loaded.
  uint64_t held_bytes() const { return held_; }
  // Returns the max bytes at any time until then, if all units are packed anew.
  uint64_t peak_bytes() const { return peak_; }
  struct Item {
    absl::string_view name;
    uint64_t bytes;
  };
  const std::vector<Item>& items() const { return items_; }
  // The item that there is at the peak, and not at the end.
  const Item& passing() const { return passing_; }

 private:
  std::vector<Item> items_;
  Item passing_ = {"", 0};
  uint64_t held_ = 0, peak_ = 0;
};

struct StagePlacement {
  // The tiers' shares of layers and head, and the place of each of these.
  TierFractions weights;
  std::vector<UnitPlacement> units;
  // True if any weights are on disk: no bytes are wanted less often than its.
  bool embedding_on_disk = false;
  // The slots for streamed weights, each as large as the largest streamed part
  // of a unit; those on the host are for weights from the disk.
  int device_slots = 0, host_slots = 0;
  uint64_t device_slot_bytes = 0, host_slot_bytes = 0;

  GroupPages pages = {};  // of KV
  // The pages of the furthest tier that make up for those left in the others,
  // too few for a sequence: no share of the cache.
  ByKvGroup<int64_t> stranded = {};
  // The device's slots for KV that lives elsewhere and is attended there.
  int staging_slots = 0;
  uint64_t kv_staging_bytes = 0;  // in host memory, of KV on disk

  int resident_batches = 0;  // whose activations stay on the device
  int activation_slots = 0;  // there, for the others
  // The micro-batches whose activations have whole buffers in host memory,
  // where those of a device begin and end.
  int host_batches = 0;
  // The activations of micro-batches that don't stay on a device; its share on
  // disk is 0 if all are in host memory.
  ActivationShape activations;
  bool stages_activations() const { return activations.disk > 0; }

  std::array<TierUse, kNumTiers> uses;

  bool needs_packed_files() const {
    return weights.disk > 0 || embedding_on_disk;
  }
  bool uses_disk() const {
    return needs_packed_files() || stages_activations() ||
           pages[KvGroup::kAll][static_cast<size_t>(Tier::kDisk)] > 0;
  }
  const TierUse& use(Tier tier) const {
    return uses[static_cast<size_t>(tier)];
  }
  bool Fits(const TierLimits& limits) const;
};

// Decides all that a policy leaves open. Shares that it names are kept; what is
// automatic goes to the device as far as that has room: activations up to a
// quarter of it, then weights, then KV. Of the rest, KV goes to host memory, up
// to half of the room if the weights need it, then weights, and what is left of
// those to the disk, if there is one. The answer need not fit: see Fits().
// REQUIRES: a policy of the sizes' shape, but for its fractions.
StagePlacement Place(const StageSizes& sizes, const Policy& policy,
                     const TierLimits& limits);

// kResourceExhausted if a tier does not hold what the placement puts there,
// with what wants how much and what might help.
absl::Status CheckFits(const StageSizes& sizes, const StagePlacement& placement,
                       const TierLimits& limits);

}  // namespace sluice
