#include "scheduler/partition.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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

}  // namespace
}  // namespace sluice
