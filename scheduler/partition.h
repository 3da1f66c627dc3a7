#pragma once

#include <vector>

#include "common/types.h"

namespace sluice {

// Cuts `num_layers` layers into consecutive, non-empty stages, one per worker:
// min(num_layers, num_workers) of them, in order, whose sizes differ by at most
// one. The smaller shares come last, since the last stage also computes the LM
// head, which costs more than the first stage's embedding. Empty if either
// number is not positive.
std::vector<LayerRange> SplitEvenly(int num_layers, int num_workers);

}  // namespace sluice
