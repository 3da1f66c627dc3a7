#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "common/blocks.h"
#include "common/tier.h"

namespace sluice {

// The places of one packed unit's bytes: [0, device_end) on the device,
// [device_end, host_end) in host memory, the rest on disk.
struct UnitPlacement {
  size_t bytes = 0;
  size_t device_end = 0;
  size_t host_end = 0;
  // The offsets at which the streamed bytes begin, to the device and from the
  // disk: where the part begins in which the cut lies, since a part of a packed
  // unit is read as a whole; `bytes` if nothing is streamed.
  size_t device_split = 0;
  size_t host_split = 0;

  size_t disk_bytes() const { return bytes - host_end; }
};

// Returns what is streamed of a packed unit from its split on: whole blocks.
inline size_t StreamedBytes(size_t bytes, size_t split) {
  return split == bytes ? 0 : bytes - RoundDownToDiskBlock(split);
}

// Cuts each unit so that all together follow the fractions. Every unit gives
// up the same number of bytes, or all it has (see EvenLevel), so that what is
// streamed takes as little memory as can be; the rounding to its granule is
// carried from one unit to the next: the whole is off by half a granule at
// most. `fractions` add up to 1. The splits are left at 0. Units that are parts
// of packed units have the granules of these.
std::vector<UnitPlacement> PlaceWeights(std::span<const size_t> unit_bytes,
                                        std::span<const size_t> granules,
                                        const TierFractions& fractions);

// Returns how many bytes each unit gives up for all to give up `total`
// together, if each gives the same or all it has: sum of min(bytes, level) =
// total.
double EvenLevel(std::span<const size_t> unit_bytes, double total);

// Bytes in which a unit may be cut and is checked: about 1/256 of it, from one
// to sixteen disk blocks.
size_t PlacementGranule(size_t unit_bytes);

}  // namespace sluice
