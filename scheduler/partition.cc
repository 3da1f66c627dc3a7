#include "scheduler/partition.h"

#include <algorithm>

namespace sluice {

std::vector<LayerRange> SplitEvenly(int num_layers, int num_workers) {
  std::vector<LayerRange> stages;
  if (num_layers <= 0 || num_workers <= 0) return stages;
  const int num_stages = std::min(num_layers, num_workers);
  const int share = num_layers / num_stages;
  const int larger = num_layers % num_stages;
  stages.reserve(num_stages);
  int begin = 0;
  for (int i = 0; i < num_stages; ++i) {
    const int end = begin + share + (i < larger ? 1 : 0);
    stages.push_back({begin, end});
    begin = end;
  }
  return stages;
}

}  // namespace sluice
