#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/types.h"
#include "sluice/v1/pipeline.pb.h"

namespace sluice {

// Returns the stage that a step waits for when a plan is stalled, by
// elimination: the first one that has not handed it on, and is not blocked by
// the next one. `stages` has their activities in order; one of another epoch
// has done nothing for `epoch`. The last stage if all others have done their
// part: its result has not come back. Pure. REQUIRES: !stages.empty().
size_t StageHeldAt(const std::vector<v1::Activity>& stages, PlanEpoch epoch,
                   int64_t step);

// The name of an activity in messages: "computing", "loading".
const char* ActivityName(v1::Activity::Kind kind);

}  // namespace sluice
