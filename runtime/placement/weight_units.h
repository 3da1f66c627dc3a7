#pragma once

#include <cstddef>
#include <vector>

#include "common/types.h"
#include "runtime/placement/backend_space.h"

namespace sluice {

// A unit of a stage's weights: what is placed, brought and released by itself.
struct WeightUnit {
  int packed = 0;    // the packed unit that has it
  size_t begin = 0;  // in that
  size_t bytes = 0;
  int expert = -1;  // that it is; -1: all but a mixture's experts
};

// A stage's units in the order of use. Its packed units are those of its
// layers, then of the head's sections. Each is one unit, but a mixture's is
// several: its core, and then its experts.
struct WeightUnits {
  std::vector<WeightUnit> all;
  std::vector<int> first;  // of each packed unit; and the end

  WeightUnits() = default;
  WeightUnits(const PackedLayouts& layouts, LayerRange layers);

  int num_packed() const { return static_cast<int>(first.size()) - 1; }
  size_t packed_bytes(int packed) const {
    const WeightUnit& last = all[first[packed + 1] - 1];
    return last.begin + last.bytes;
  }
};

}  // namespace sluice
