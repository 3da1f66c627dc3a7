#pragma once

#include <cstdint>

#include "common/types.h"

namespace sluice {

// Shares of one kind of data on the three tiers; they add up to 1.
struct TierFractions {
  double device = 0;
  double host = 1;
  double disk = 0;
};

// How one worker runs its stage (FlexGen, section 4.3: the policy of 11
// variables). On a CPU-only worker device and host are the same memory.
struct Policy {
  int32_t gbs = 64;  // sequences in a micro-batch
  int32_t num_microbatches =
      1;  // micro-batches that share one pass over the weights
  int32_t max_step_tokens = 2048;  // new tokens in a micro-batch of one step:
                                   // bounds activations and prefill chunks
  TierFractions weights;
  TierFractions kv_cache;
  TierFractions activations;
  DType dtype = DType::kFloat32;
  int32_t compute_threads = 0;  // 0: as the worker was configured
};

}  // namespace sluice
