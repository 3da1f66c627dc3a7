#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "common/types.h"

namespace sluice {

// What all plans of a cluster count together, so that a worker that goes from
// one pipeline to another never meets an epoch again. Thread-compatible.
struct PlanNumbers {
  int64_t last_epoch = 0;   // given to a plan or a preparation
  int64_t last_plan = 0;    // the epoch of the newest plan; 0 before the first
  int64_t last_ticket = 0;  // given to a search
  // Plans that ended, or never began, because of an error.
  std::map<std::string, int64_t> failures_by_kind;

  PlanEpoch NextEpoch() { return PlanEpoch(++last_epoch); }
};

}  // namespace sluice
