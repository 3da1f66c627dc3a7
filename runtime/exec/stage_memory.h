#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "common/policy.h"
#include "runtime/memory/memory_budget.h"

namespace sluice {

// What a stage has to place, in bytes.
struct StageNeeds {
  uint64_t embedding_bytes = 0;
  uint64_t embedding_rows_bytes = 0;  // what it takes with its table on disk
  uint64_t layer_bytes = 0;
  int num_layers = 0;
  uint64_t head_bytes = 0;
  uint64_t part_bytes = 0;  // the largest part that must not be split
  uint64_t expanded_bytes = 0;
  uint64_t layer_page_bytes = 0;   // a KV page of one layer
  int64_t max_sequence_pages = 0;  // of the longest sequence
  int64_t kv_pages = 0;            // that are worth having
  int64_t sequences_per_batch = 0;
  uint64_t activation_bytes = 0;  // of a micro-batch
  // Of activations that are partly on disk; else they are charged already.
  uint64_t activation_memory_bytes = 0;
  uint64_t activation_staging_bytes = 0;
  uint64_t activation_disk_bytes = 0;
  // Beside a device: what of each layer and of the head is there, and what
  // loading takes in host memory for a time.
  uint64_t device_layer_bytes = 0;
  uint64_t device_head_bytes = 0;
  uint64_t loading_bytes = 0;

  uint64_t weight_bytes() const {
    return embedding_bytes + layer_bytes * num_layers + head_bytes;
  }
};

// Where it goes.
struct StageMemory {
  TierFractions weights;  // of layers and head
  // Wherever any weights are: no bytes are wanted less often than its.
  bool embedding_on_disk = false;
  int weight_slots = 0;
  int64_t host_pages = 0;
  int64_t disk_pages = 0;
  uint64_t kv_staging_bytes = 0;
  bool needs_images() const { return weights.disk > 0 || embedding_on_disk; }
  bool uses_disk() const { return needs_images() || disk_pages > 0; }
};

// Decides before anything is loaded. Shares that the policy names are kept;
// what it leaves open goes to memory as far as `memory` has room: first the KV
// cache, up to half of the room if the weights need it, then weights. What then
// is left is used for more weights. Without `may_use_disk` all must fit into
// memory. kResourceExhausted with a table of what wants how much.
absl::StatusOr<StageMemory> PlanStageMemory(const StageNeeds& needs,
                                            const Policy& policy,
                                            bool may_use_disk,
                                            MemoryBudget* memory,
                                            MemoryBudget* disk);

}  // namespace sluice
