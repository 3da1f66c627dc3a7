#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "common/policy.h"
#include "runtime/exec/stage_needs.h"
#include "runtime/memory/memory_budget.h"

namespace sluice {

// Where it goes.
struct StageMemory {
  TierFractions weights;  // of layers and head
  // Wherever any weights are: no bytes are wanted less often than its.
  bool embedding_on_disk = false;
  int weight_slots = 0;
  int64_t host_pages = 0;
  int64_t disk_pages = 0;
  // Of the furthest tier's pages, those that make up for what is left of the
  // others, too little for a sequence: no share of the cache.
  int64_t stranded_pages = 0;
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
