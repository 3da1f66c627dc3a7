#pragma once

#include "absl/status/status.h"

namespace sluice {

// The answer to calls that a coordinator no longer takes.
inline absl::Status ShuttingDown() {
  return absl::UnavailableError("the coordinator is shutting down; try again");
}

}  // namespace sluice
