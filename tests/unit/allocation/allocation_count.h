#pragma once

#include <cstdint>

namespace sluice {

// The number of calls of operator new by this program, on any thread. Linking
// this replaces operator new and delete.
int64_t AllocationCount();

}  // namespace sluice
