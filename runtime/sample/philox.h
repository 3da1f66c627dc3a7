#pragma once

#include <array>
#include <cstdint>

namespace sluice {

// Philox4x32-10, a counter-based random number generator: a keyed bijection of
// 128-bit counters that passes the usual test batteries (Salmon, Moraes, Dror
// and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
inline std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> counter,
                                          std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53} * counter[0];
    const uint64_t p1 = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(p1 >> 32) ^ counter[1] ^ key[0],
               static_cast<uint32_t>(p1),
               static_cast<uint32_t>(p0 >> 32) ^ counter[3] ^ key[1],
               static_cast<uint32_t>(p0)};
    key[0] += 0x9E3779B9;  // golden ratio
    key[1] += 0xBB67AE85;  // sqrt(3) - 1
  }
  return counter;
}

// Returns the number in [0, 1) with 53 random bits of the stream `seed` at
// `position`.
inline double UniformAt(uint64_t seed, int32_t position) {
  const std::array<uint32_t, 4> bits = Philox4x32(
      {static_cast<uint32_t>(position), 0, 0, 0},
      {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  const uint64_t word = uint64_t{bits[0]} << 32 | bits[1];
  return static_cast<double>(word >> 11) * 0x1p-53;
}

}  // namespace sluice
