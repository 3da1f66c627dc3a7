#include "runtime/memory/checksum.h"

// The dispatching version uses the processor's vectors, the default SSE2.
#ifdef SLUICE_XXH_DISPATCH
#include <xxh_x86dispatch.h>
#else
#include <xxhash.h>
#endif

namespace sluice {

uint64_t BlockChecksum(std::span<const std::byte> data) {
  return XXH3_64bits(data.data(), data.size());
}

}  // namespace sluice
