#include "runtime/exec/weights/unit_order.h"

#include <gtest/gtest.h>

#include <vector>

namespace sluice {
namespace {

// Returns the units up to the next sweep that must begin first.
std::vector<int> Ahead(UnitOrder& order) {
  std::vector<int> units;
  while (order.unit() >= 0) {
    units.push_back(order.unit());
    order.Next();
  }
  return units;
}

TEST(UnitOrderTest, GoesThroughLayersAndHeadAsTold) {
  UnitOrder order(2, 3);
  // The layers come once ahead of the first sweep.
  EXPECT_EQ(Ahead(order), (std::vector<int>{0, 1}));
  order.Begin(1, 2);
  EXPECT_EQ(Ahead(order), (std::vector<int>{2, 3, 4, 2, 3, 4, 0, 1}));
  order.Begin(3, 1);
  EXPECT_EQ(Ahead(order), (std::vector<int>{0, 1, 0, 1, 2, 3, 4, 0, 1}));
  // Nothing is sampled.
  order.Begin(1, 0);
  EXPECT_EQ(Ahead(order), (std::vector<int>{0, 1}));
}

TEST(UnitOrderTest, NeedNotBeReadAhead) {
  UnitOrder order(2, 1);
  for (int sweep = 0; sweep < 3; ++sweep) {
    order.Begin(2, 1);
    for (const int unit : {0, 1, 0, 1, 2}) {
      EXPECT_EQ(order.unit(), unit);
      order.Next();
    }
    EXPECT_EQ(order.unit(), 0);
  }
}

TEST(UnitOrderTest, WithoutAHeadSweepsFollowEachOther) {
  UnitOrder order(2, 0);
  EXPECT_EQ(Ahead(order), (std::vector<int>{0, 1}));
  order.Begin(1, 0);
  EXPECT_EQ(Ahead(order), (std::vector<int>{0, 1}));
  order.Begin(2, 0);
  EXPECT_EQ(Ahead(order), (std::vector<int>{0, 1, 0, 1}));
}

}  // namespace
}  // namespace sluice
