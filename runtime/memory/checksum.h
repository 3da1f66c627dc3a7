#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace sluice {

// XXH3, 64 bits, seed 0 (xxhash.com, specification 0.8): finds every fault of
// a disk or a memory, and resists no adversary. The same on all machines.
uint64_t BlockChecksum(std::span<const std::byte> data);

}  // namespace sluice
