#pragma once

#include <cstdint>

#include "runtime/kv/kv_groups.h"

namespace sluice {

// Returns the groups of layers that keep all positions.
inline KvGroups AllPositions(int32_t layers) {
  KvGroups groups;
  for (int32_t layer = 0; layer < layers; ++layer) {
    groups.layers.push_back({KvGroup::kAll, groups.sizes[KvGroup::kAll]++});
  }
  return groups;
}

}  // namespace sluice
