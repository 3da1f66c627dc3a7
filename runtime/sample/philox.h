#pragma once

#include <array>
#include <cstdint>

namespace sluice {

// Philox4x32-10, a counter-based random number generator: a keyed bijection of
// 128-bit counters that passes the usual test batteries (Salmon, Moraes, Dror
// and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> counter,
                                   std::array<uint32_t, 2> key);

// Returns the number in [0, 1) with 53 random bits of the stream `seed` at
// `position`.
double UniformAt(uint64_t seed, int32_t position);

}  // namespace sluice
