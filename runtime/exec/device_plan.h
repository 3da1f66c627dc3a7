#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "common/policy.h"
#include "runtime/exec/stage_memory.h"
#include "runtime/memory/memory_budget.h"

namespace sluice {

// What of a stage goes to a device with memory of its own.
struct DevicePlan {
  double weights = 0;  // share of each layer and of the head
  int weight_slots = 0;
  int64_t kv_pages = 0;
  // For KV that lives elsewhere and is attended on the device.
  int64_t staging_pages = 0;  // of a group
  int staging_slots = 0;
  int resident_batches = 0;  // whose activations stay
  int activation_slots = 0;  // for the others
};

// Decides before anything is loaded. Shares that the policy names are kept;
// what it leaves open goes to the device as far as it has room: activations up
// to a quarter of it, then weights, then KV. kResourceExhausted with a table of
// what wants how much.
absl::StatusOr<DevicePlan> PlanDevice(const StageNeeds& needs,
                                      const Policy& policy,
                                      const MemoryBudget& device);

// What is left for host memory and disk, and the shares of that: for
// PlanStageMemory.
StageNeeds NeedsBesideDevice(const StageNeeds& needs, const DevicePlan& plan);
Policy PolicyBesideDevice(const Policy& policy, const DevicePlan& plan);
// Shares of the whole from what PlanStageMemory said of the rest.
TierFractions WithDevice(const DevicePlan& plan, const TierFractions& rest);

}  // namespace sluice
