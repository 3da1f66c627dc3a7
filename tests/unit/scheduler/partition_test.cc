#include "scheduler/plan/partition.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <utility>
#include <vector>

namespace sluice {

void PrintTo(const LayerRange& range, std::ostream* os) {
  *os << "[" << range.begin << ", " << range.end << ")";
}

namespace {

using Stages = std::vector<LayerRange>;

TEST(SplitEvenlyTest, SmallerSharesComeLast) {
  struct Case {
    int layers;
    int workers;
    Stages expected;
  };
  for (const Case& c : std::vector<Case>{
           {1, 1, {{0, 1}}},
           {12, 1, {{0, 12}}},
           {12, 2, {{0, 6}, {6, 12}}},
           {12, 5, {{0, 3}, {3, 6}, {6, 8}, {8, 10}, {10, 12}}},
           {4, 3, {{0, 2}, {2, 3}, {3, 4}}},
           {2, 5, {{0, 1}, {1, 2}}},
           {0, 3, {}},
           {3, 0, {}},
           {-1, 3, {}},
           {3, -1, {}},
       }) {
    EXPECT_EQ(SplitEvenly(c.layers, c.workers), c.expected)
        << c.layers << " over " << c.workers;
  }
}

TEST(SplitEvenlyTest, CoversAllLayersEvenly) {
  for (int layers = 1; layers <= 40; ++layers) {
    for (int workers = 1; workers <= 45; ++workers) {
      const Stages stages = SplitEvenly(layers, workers);
      ASSERT_EQ(stages.size(), static_cast<size_t>(std::min(layers, workers)));
      int next = 0;
      for (const LayerRange& stage : stages) {
        EXPECT_EQ(stage.begin, next);
        next = stage.end;
        EXPECT_GE(stage.size(), 1);
        EXPECT_LE(stage.size(), stages.front().size());
        EXPECT_GE(stage.size(), stages.front().size() - 1);
      }
      EXPECT_EQ(next, layers);
    }
  }
}

constexpr double kUnbounded = std::numeric_limits<double>::infinity();

// A cluster whose costs are made up: layers of unlike cost, an embedding, an LM
// head, and workers of unlike speed that hold so many layers.
struct Cluster {
  std::vector<std::vector<int>> machines;
  std::vector<double> layers;
  double embedding = 0;
  double head = 0;
  std::vector<double> slowness;
  std::vector<int> max_layers;
  double each_stage = 0;

  double Cost(int worker, LayerRange range) const {
    if (range.size() > max_layers[worker]) return kUnbounded;
    double sum = each_stage;
    for (int l = range.begin; l < range.end; ++l) sum += layers[l];
    if (range.begin == 0) sum += embedding;
    if (range.end == static_cast<int>(layers.size())) sum += head;
    return sum * slowness[worker];
  }

  // Returns the cost of the slowest machine.
  double CostOf(const std::vector<BalancedStage>& stages) const {
    double slowest = 0;
    for (const std::vector<int>& workers : machines) {
      double sum = 0;
      for (const BalancedStage& stage : stages) {
        for (const int worker : workers) {
          if (worker == stage.worker) sum += Cost(worker, stage.layers);
        }
      }
      slowest = std::max(slowest, sum);
    }
    return slowest;
  }
};

Cluster RandomCluster(std::mt19937_64& rng) {
  const auto below = [&](int n) { return static_cast<int>(rng() % n); };
  Cluster c;
  const int num_machines = 1 + below(4);
  int workers = 0;
  for (int m = 0; m < num_machines; ++m) {
    c.machines.emplace_back();
    const int on_it = below(4) == 0 ? 2 : 1;
    for (int w = 0; w < on_it; ++w) {
      c.machines.back().push_back(workers++);
      // Few speeds, so that there are ties.
      c.slowness.push_back(1 + below(4));
      c.max_layers.push_back(below(3) == 0 ? 1 + below(4) : 100);
    }
  }
  const int layers = 1 + below(9);
  for (int l = 0; l < layers; ++l) c.layers.push_back(1 + 0.25 * below(3));
  c.embedding = 0.5 * below(3);
  c.head = below(4);
  c.each_stage = 0.125 * below(3);
  return c;
}

// The least cost of all ways to cut, workers in their order, any of them
// without layers.
double BruteForce(const Cluster& c, int num_workers) {
  const int num_layers = static_cast<int>(c.layers.size());
  double best = kUnbounded;
  std::vector<BalancedStage> stages;
  const auto visit = [&](auto&& self, int worker, int begin) -> void {
    if (worker == num_workers) {
      if (begin == num_layers) best = std::min(best, c.CostOf(stages));
      return;
    }
    self(self, worker + 1, begin);
    for (int end = begin + 1; end <= num_layers; ++end) {
      stages.push_back({worker, {begin, end}});
      self(self, worker + 1, end);
      stages.pop_back();
    }
  };
  visit(visit, 0, 0);
  return best;
}

TEST(SplitBalancedTest, EqualsBruteForceOnSmallClusters) {
  std::mt19937_64 rng(1);
  int infeasible = 0, left_out = 0, shared = 0;
  for (int i = 0; i < 2000; ++i) {
    SCOPED_TRACE(i);
    const Cluster c = RandomCluster(rng);
    const int workers = static_cast<int>(c.slowness.size());
    const std::vector<BalancedStage> stages =
        SplitBalanced(static_cast<int>(c.layers.size()), c.machines,
                      [&](int w, LayerRange r) { return c.Cost(w, r); });
    const double best = BruteForce(c, workers);
    if (!std::isfinite(best)) {
      EXPECT_TRUE(stages.empty());
      ++infeasible;
      continue;
    }
    int next = 0;
    int worker = -1;
    for (const BalancedStage& stage : stages) {
      EXPECT_EQ(stage.layers.begin, next);
      EXPECT_GE(stage.layers.size(), 1);
      EXPECT_GT(stage.worker, worker);
      next = stage.layers.end;
      worker = stage.worker;
    }
    ASSERT_EQ(next, static_cast<int>(c.layers.size()));
    EXPECT_DOUBLE_EQ(c.CostOf(stages), best);
    // A split that is not below a bound is not found; any other is.
    const auto cost = [&](int w, LayerRange r) { return c.Cost(w, r); };
    const int layers = static_cast<int>(c.layers.size());
    EXPECT_TRUE(SplitBalanced(layers, c.machines, cost, best).empty());
    EXPECT_DOUBLE_EQ(
        c.CostOf(SplitBalanced(layers, c.machines, cost, best * 1.001)), best);
    if (static_cast<int>(stages.size()) < workers) ++left_out;
    if (workers > static_cast<int>(c.machines.size())) ++shared;
  }
  EXPECT_GT(infeasible, 50);
  EXPECT_GT(left_out, 200);
  EXPECT_GT(shared, 200);
}

TEST(SplitBalancedTest, ASlowMachineGetsFewerLayers) {
  // Speeds 3 : 1 : 2.
  const std::vector<double> seconds = {1, 3, 1.5};
  const std::vector<BalancedStage> stages =
      SplitBalanced(12, {{0}, {1}, {2}},
                    [&](int w, LayerRange r) { return seconds[w] * r.size(); });
  EXPECT_EQ(stages, (std::vector<BalancedStage>{
                        {0, {0, 6}}, {1, {6, 8}}, {2, {8, 12}}}));
}

TEST(SplitBalancedTest, WorkersOfOneMachineShareIt) {
  // Two workers on a machine are no faster than one; they only hold more.
  const auto cost = [](int w, LayerRange r) {
    return w < 2 && r.size() > 3 ? kUnbounded : 1.0 * r.size();
  };
  const std::vector<BalancedStage> stages =
      SplitBalanced(10, {{0, 1}, {2}}, cost);
  EXPECT_EQ(stages, (std::vector<BalancedStage>{
                        {0, {0, 3}}, {1, {3, 5}}, {2, {5, 10}}}));
}

TEST(SplitBalancedTest, PricesFewRanges) {
  std::map<std::pair<int, int>, int> priced;
  const auto cost = [&](int w, LayerRange r) {
    ++priced[{w, r.size()}];
    return r.size() * (1 + 0.1 * w) + (r.end == 96 ? 2 : 0);
  };
  EXPECT_EQ(
      SplitBalanced(96, {{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}}, cost).size(),
      8u);
  EXPECT_LT(priced.size(), 300u);  // of 8 x 96
}

TEST(SplitBalancedTest, NothingToSplit) {
  const auto cost = [](int, LayerRange) { return 1.0; };
  EXPECT_TRUE(SplitBalanced(0, {{0}}, cost).empty());
  EXPECT_TRUE(SplitBalanced(4, {}, cost).empty());
  EXPECT_TRUE(SplitBalanced(4, {{}}, cost).empty());
}

}  // namespace
}  // namespace sluice
