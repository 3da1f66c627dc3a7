#pragma once

#include <cstdint>

namespace sluice {

// How often this program has called operator new, on any thread. Linking this
// replaces operator new and delete.
int64_t AllocationCount();

}  // namespace sluice
