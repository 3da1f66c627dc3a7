#pragma once

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"

namespace sluice {

// What is called while weights are packed, on the packing thread, with the
// bytes done since the last call, counted as they lie in the image. Returns an
// error to stop.
using LoadProgress = absl::FunctionRef<absl::Status(uint64_t bytes)>;

}  // namespace sluice
