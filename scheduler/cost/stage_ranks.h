#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "common/tier.h"
#include "runtime/placement/stage_placement.h"
#include "runtime/placement/stage_sizes.h"
#include "scheduler/cost/product_rates.h"

namespace sluice {

// The greatest part of a stage's work that one of its ranks has: the others
// wait for it at each exchange. Of one rank, all of it.
struct RankWork {
  double query_width = 0, kv_width = 0;  // in elements
  double attention_elements = 0;         // weights of a layer's q, k, v and out
  double mlp_elements = 0;               // of its MLP, or of its shared expert
  double expert_elements = 0;            // of all its other experts
  double head_elements = 0;
  double layer_elements() const {
    return attention_elements + mlp_elements + expert_elements;
  }
  // The exchanges of a layer, and the bytes that a rank gets in these for each
  // row from the others, if parts are equal.
  double exchanges = 0, exchanged_bytes = 0;
  // The further ones of a mixture whose experts all have rows, which rows of
  // all micro-batches share.
  double expert_exchanges = 0;
};

// The ranks that compute a stage together, as far as they differ.
struct StageRanks {
  struct Kind {
    StageSizes sizes;
    int32_t count = 1;  // of ranks with these sizes
  };
  std::vector<Kind> kinds;  // the leading rank's first
  RankWork work;
  // Of products with the layers' weights as they lie but experts, with experts,
  // with full ones, and with the head's.
  std::vector<SharedRates> layers, experts;
  ProductRates full, head;

  const StageSizes& lead() const { return kinds.front().sizes; }
  int32_t count() const;
};

// Where the ranks of a stage put what is theirs.
struct RanksPlacement {
  // A tier's bytes: of host memory and disk those of all ranks together, of
  // devices, of which each rank has one, the most of a rank's.
  struct Use {
    uint64_t held_bytes = 0, peak_bytes = 0;
  };
  std::vector<StagePlacement> kinds;  // of each kind of rank
  std::array<Use, kNumTiers> uses;

  const Use& use(Tier tier) const { return uses[static_cast<size_t>(tier)]; }
  bool Fits(const TierLimits& limits) const;
};

// The work of the rank that has most of it, in a layer of those given: their
// average, where they differ.
RankWork RankWorkOf(const DecoderSpec& model, LayerRange layers,
                    const Policy& policy, int32_t ranks);

}  // namespace sluice
