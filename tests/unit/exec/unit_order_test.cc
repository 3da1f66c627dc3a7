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

// Units 1 and 2 are a layer's experts: of the coming pass, and in a stage of
// this layer alone, of the one after.
TEST(UnitOrderTest, HoldsUnitsBack) {
  UnitOrder order(3, 1);
  order.Begin(1, 1);
  order.HoldBack(1, 3, false);
  EXPECT_EQ(order.ahead(), 0);
  order.Next();
  EXPECT_EQ(order.unit(), 1);
  EXPECT_EQ(order.ahead(), -1);
  // It is known which of them are wanted.
  order.HoldBack(1, 3, true);
  EXPECT_EQ(order.ahead(), 1);
  order.Next();
  EXPECT_EQ(order.ahead(), 2);
  order.Next();
  EXPECT_EQ(order.ahead(), 3);
  order.Next();
  EXPECT_EQ(order.ahead(), 0);
  order.Next();
  EXPECT_EQ(order.unit(), 1);
  EXPECT_EQ(order.ahead(), -1);
  // Those of another layer are held from now on.
  UnitOrder two(6, 0);
  two.Begin(1, 0);
  two.Next();
  two.HoldBack(4, 6, true);
  for (const int unit : {1, 2, 3, -1}) {
    EXPECT_EQ(two.ahead(), unit);
    if (unit >= 0) two.Next();
  }
  two.HoldBack(0, 0, false);
  EXPECT_EQ(two.ahead(), 4);
}

}  // namespace
}  // namespace sluice
