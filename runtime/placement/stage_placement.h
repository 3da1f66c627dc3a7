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

// Where a stage's data goes, and what each tier then holds to the byte. A
// worker loads a stage by this, and a planner plans by it.

namespace sluice {

// The bytes that are free on each tier. No disk: 0.
using TierLimits = std::array<uint64_t, kNumTiers>;

// The charges of a stage to one tier, in their order.
class TierUse {
 public:
  void Hold(absl::string_view name, uint64_t bytes);
  // Beside all that is held so far, for a time.
  void Pass(absl::string_view name, uint64_t bytes);

  // Once the stage is loaded.
  uint64_t held_bytes() const { return held_; }
  // Most at any time until then, if all images are made anew.
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
  // Shares of layers and head, and where each of these lies.
  TierFractions weights;
  std::vector<UnitPlacement> units;
  // Wherever any weights are: no bytes are wanted less often than its.
  bool embedding_on_disk = false;
  // For streamed weights, each of what is streamed of any unit at most; on the
  // host those that come from the disk.
  int device_slots = 0, host_slots = 0;
  uint64_t device_slot_bytes = 0, host_slot_bytes = 0;

  std::array<int64_t, kNumTiers> pages = {};  // of KV
  // Of the furthest tier's pages, those that make up for what is left of the
  // others, too little for a sequence: no share of the cache.
  int64_t stranded_pages = 0;
  // For KV that lives elsewhere and is attended on the device.
  int staging_slots = 0;
  uint64_t kv_staging_bytes = 0;  // in host memory, of KV on disk

  int resident_batches = 0;  // whose activations stay on the device
  int activation_slots = 0;  // there, for the others
  // Of micro-batches that don't stay on a device, if they are partly on disk:
  // else its share is 0, and they are in host memory.
  ActivationShape activations;
  bool stages_activations() const { return activations.disk > 0; }

  std::array<TierUse, kNumTiers> uses;

  bool needs_images() const { return weights.disk > 0 || embedding_on_disk; }
  bool uses_disk() const {
    return needs_images() || stages_activations() ||
           pages[static_cast<size_t>(Tier::kDisk)] > 0;
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
