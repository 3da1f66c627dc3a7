#include "scheduler/plan/partition.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

namespace sluice {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// The shares of one machine's workers in the layers from `begin` on, for each
// end, with the least sum of their costs.
class SharedMachine {
 public:
  SharedMachine(const std::vector<int>& workers, int begin, int num_layers,
                StageCostFunction cost)
      : workers_(workers), begin_(begin) {
    const int n = num_layers - begin + 1;
    std::vector<double> before(n, kInfinity);
    before[0] = 0;
    for (const int worker : workers) {
      std::vector<double> sums(n, kInfinity);
      std::vector<int> starts(n);
      for (int end = 0; end < n; ++end) {
        for (int start = end; start >= 0; --start) {
          const double own =
              start < end ? cost(worker, {begin + start, begin + end}) : 0;
          // The worker's own cost only grows from here.
          if (own >= sums[end]) break;
          if (before[start] + own < sums[end]) {
            sums[end] = before[start] + own;
            starts[end] = start;
          }
        }
      }
      starts_.push_back(std::move(starts));
      before = std::move(sums);
    }
    sums_ = std::move(before);
  }

  double Cost(int end) const { return sums_[end - begin_]; }

  std::vector<BalancedStage> Stages(int end) const {
    std::vector<BalancedStage> stages;
    int at = end - begin_;
    for (size_t w = workers_.size(); w-- > 0;) {
      const int start = starts_[w][at];
      if (start < at) {
        stages.push_back({workers_[w], {begin_ + start, begin_ + at}});
      }
      at = start;
    }
    std::reverse(stages.begin(), stages.end());
    return stages;
  }

 private:
  std::vector<int> workers_;
  int begin_;
  std::vector<std::vector<int>> starts_;  // of each worker's share, by its end
  std::vector<double> sums_;              // by end
};

class Balancer {
 public:
  Balancer(int num_layers, const std::vector<std::vector<int>>& machines,
           StageCostFunction cost)
      : num_layers_(num_layers), machines_(machines), cost_(cost) {}

  struct Split {
    double cost = 0;  // of the slowest machine
    std::vector<BalancedStage> stages;
  };

  // Gives each machine in turn as many layers as it can take within `bound`,
  // or in less if `strictly`. False if some are left.
  bool Fill(double bound, bool strictly, Split* split) {
    *split = Split();
    int begin = 0;
    for (size_t m = 0; m < machines_.size() && begin < num_layers_; ++m) {
      int min = begin;
      int max = num_layers_;
      double taken = 0;
      while (min < max) {
        const int end = min + (max - min + 1) / 2;
        const double tried = Cost(m, {begin, end});
        if (std::isfinite(tried) &&
            (strictly ? tried < bound : tried <= bound)) {
          min = end;
          taken = tried;
        } else {
          max = end - 1;
        }
      }
      if (min == begin) continue;
      split->cost = std::max(split->cost, taken);
      for (const BalancedStage& stage : Stages(m, {begin, min})) {
        split->stages.push_back(stage);
      }
      begin = min;
    }
    return begin == num_layers_;
  }

 private:
  const SharedMachine& Shared(size_t machine, int begin) {
    return shared_
        .try_emplace({machine, begin}, machines_[machine], begin, num_layers_,
                     cost_)
        .first->second;
  }

  double Cost(size_t machine, LayerRange layers) {
    const std::vector<int>& workers = machines_[machine];
    if (workers.empty()) return kInfinity;
    if (workers.size() == 1) return cost_(workers[0], layers);
    return Shared(machine, layers.begin).Cost(layers.end);
  }

  std::vector<BalancedStage> Stages(size_t machine, LayerRange layers) {
    const std::vector<int>& workers = machines_[machine];
    if (workers.size() == 1) return {{workers[0], layers}};
    return Shared(machine, layers.begin).Stages(layers.end);
  }

  int num_layers_;
  const std::vector<std::vector<int>>& machines_;
  StageCostFunction cost_;
  std::map<std::pair<size_t, int>, SharedMachine> shared_;
};

}  // namespace

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

std::vector<BalancedStage> SplitBalanced(
    int num_layers, const std::vector<std::vector<int>>& machines,
    StageCostFunction cost, double less_than) {
  if (num_layers <= 0) return {};
  Balancer balancer(num_layers, machines, cost);
  Balancer::Split best;
  if (!balancer.Fill(less_than, true, &best)) return {};
  Balancer::Split tried;
  double unreachable = 0;  // no split costs as little
  // Each round finds a cost that is lower, or that there is none; the halving
  // in between keeps the rounds few.
  while (balancer.Fill(best.cost, true, &tried)) {
    best = tried;
    const double middle = unreachable + (best.cost - unreachable) / 2;
    if (balancer.Fill(middle, false, &tried)) {
      best = tried;
    } else {
      unreachable = middle;
    }
  }
  return best.stages;
}

}  // namespace sluice
