#include "runtime/placement/weight_units.h"

namespace sluice {

WeightUnits::WeightUnits(const PackedLayouts& layouts, LayerRange layers) {
  const auto begin_packed = [&] {
    first.push_back(static_cast<int>(all.size()));
    return static_cast<int>(first.size()) - 1;
  };
  for (int32_t i = layers.begin; i < layers.end; ++i) {
    const LayerLayout& layer = layouts.layer(i);
    const int packed = begin_packed();
    all.push_back({packed, 0, layer.core_bytes, -1});
    for (int expert = 0; expert < layer.experts; ++expert) {
      all.push_back(
          {packed, layer.expert_begin(expert), layer.expert.bytes, expert});
    }
  }
  for (const HeadSectionLayout& section : layouts.head) {
    all.push_back({begin_packed(), 0, section.bytes, -1});
  }
  first.push_back(static_cast<int>(all.size()));
}

}  // namespace sluice
