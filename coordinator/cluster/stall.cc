#include "coordinator/cluster/stall.h"

namespace sluice {

size_t StageHeldAt(const std::vector<v1::Activity>& stages, PlanEpoch epoch,
                   int64_t step) {
  size_t s = 0;
  for (; s + 1 < stages.size(); ++s) {
    const v1::Activity& stage = stages[s];
    if (stage.epoch() != epoch.value()) break;
    if (stage.last_step_out() < step &&
        stage.kind() != v1::Activity::KIND_BLOCKED) {
      break;
    }
  }
  return s;
}

const char* ActivityName(v1::Activity::Kind kind) {
  switch (kind) {
    case v1::Activity::KIND_LOADING:
      return "loading";
    case v1::Activity::KIND_CONNECTING:
      return "opening its link to the next stage";
    case v1::Activity::KIND_COMPUTING:
      return "computing";
    case v1::Activity::KIND_WAITING:
      return "waiting for a step";
    case v1::Activity::KIND_BLOCKED:
      return "handing on what it computed";
    default:
      return "with no stage";
  }
}

}  // namespace sluice
