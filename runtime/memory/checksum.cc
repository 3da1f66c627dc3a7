#include "runtime/memory/checksum.h"

// The library's own choice is SSE2; this one looks at the processor.
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
