#pragma once

#include <limits>
#include <vector>

#include "absl/functional/function_ref.h"
#include "common/types.h"

namespace sluice {

// Cuts `num_layers` layers into consecutive, non-empty stages, one per worker:
// min(num_layers, num_workers) of them, in order, whose sizes differ by at most
// one. The smaller shares come last, since the last stage also computes the LM
// head, which costs more than the first stage's embedding. Empty if either
// number is not positive.
std::vector<LayerRange> SplitEvenly(int num_layers, int num_workers);

struct BalancedStage {
  int worker = 0;
  LayerRange layers;
  friend bool operator==(const BalancedStage&, const BalancedStage&) = default;
};

// The seconds that a worker takes for a range of layers; infinite if they do
// not fit.
using StageCostFunction = absl::FunctionRef<double(int worker, LayerRange)>;

// Cuts the layers into consecutive stages so that the slowest machine is as
// fast as can be: AlpaServe's recurrence (section 4.4.1)
//
//   F(s, k) = min over i of max(F(s - 1, i - 1), latency(i..k))
//
// for unlike machines, whose workers share its cores and disk, so that their
// costs add up. `machines` holds the workers of each, in pipeline order. A
// machine or worker that would only slow the others down gets no stage.
//
// REQUIRES: a range costs a worker no less than a part of it does. Then F grows
// with k, and the least bound for which each machine in turn can take as many
// layers as it may reaches the end: found by bisection, exactly, since a bound
// that is met is lowered to the cost that meets it. So only few ranges are
// priced, and those again and again: let `cost` remember.
//
// Empty if no split has a finite cost below `less_than`.
std::vector<BalancedStage> SplitBalanced(
    int num_layers, const std::vector<std::vector<int>>& machines,
    StageCostFunction cost,
    double less_than = std::numeric_limits<double>::infinity());

}  // namespace sluice
