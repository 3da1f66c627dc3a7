#pragma once

#include <cstdint>

#include "hwy/targets.h"

namespace sluice {

// Runs body() for each instruction set that this machine can run, as if it had
// no better one.
template <typename Body>
void ForEachTarget(const Body& body) {
  int64_t targets = hwy::SupportedTargets();
  while (targets != 0) {
    const int64_t target = targets & -targets;
    targets &= targets - 1;
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(target);
    body(hwy::TargetName(target));
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

}  // namespace sluice
