#pragma once

#include <cstdint>

#include "common/policy.h"
#include "scheduler/plan/plan.h"

namespace sluice {

// Names the fractions that a policy leaves open, as a worker does when it loads
// its stage (runtime/exec/device_plan.h and stage_memory.h): on the device
// activations if a quarter of its memory holds them, then weights, then KV as
// far as there is room; of the rest, KV in host memory, up to half of the room
// if the weights need it, then weights, and what is left of those on disk.
// Returns the sequences in a micro-batch for which there is KV: no more than
// block.gbs, and 1 at least. Never fails: what does not fit shows in the
// capacities.
int32_t ResolveAutomatic(const PlanRequest& request, int machine,
                         LayerRange layers, const BlockShape& block,
                         Policy* policy);

}  // namespace sluice
