#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/types.h"
#include "sluice/v1/pipeline.pb.h"

namespace sluice {

// Which stage a step waits for when nothing in the plan moves, by elimination:
// the first one that has not handed it on, and is not kept from that by the
// next one. `stages` is what each says that it is at, in order; one that says
// nothing of `epoch` has done nothing for it. The last stage, if all the others
// have done their part: what it has done has not come back. Pure.
// REQUIRES: !stages.empty().
size_t StageHeldAt(const std::vector<v1::Activity>& stages, PlanEpoch epoch,
                   int64_t step);

// "computing", "loading": what an activity is called in messages.
const char* ActivityName(v1::Activity::Kind kind);

}  // namespace sluice
