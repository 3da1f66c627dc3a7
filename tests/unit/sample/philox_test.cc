#include "runtime/sample/philox.h"

#include <gtest/gtest.h>

#include <set>

namespace sluice {
namespace {

using Counter = std::array<uint32_t, 4>;
using Key = std::array<uint32_t, 2>;

// The authors' known answers: kat_vectors of Random123, "philox4x32 10".
TEST(PhiloxTest, KnownAnswers) {
  EXPECT_EQ(Philox4x32({0, 0, 0, 0}, {0, 0}),
            (Counter{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  const uint32_t ones = 0xffffffff;
  EXPECT_EQ(Philox4x32({ones, ones, ones, ones}, {ones, ones}),
            (Counter{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
                       {0xa4093822, 0x299f31d0}),
            (Counter{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(PhiloxTest, UniformTakesTheFirstWords) {
  EXPECT_EQ(UniformAt(0, 0),
            static_cast<double>(0x6627e8d5e169c58dULL >> 11) / (1LL << 53));
}

TEST(PhiloxTest, UniformDependsOnEveryPartOfItsKey) {
  std::set<double> seen;
  for (uint64_t seed :
       {uint64_t{0}, uint64_t{1}, uint64_t{1} << 32, ~uint64_t{0}})
    for (int32_t position : {0, 1, 1 << 20, INT32_MAX})
      seen.insert(UniformAt(seed, position));
  EXPECT_EQ(seen.size(), 16u);
}

TEST(PhiloxTest, UniformIsInRangeAndEven) {
  const int n = 20000;
  double sum = 0;
  double squares = 0;
  double neighbours = 0;
  double before = 0.5;
  for (int i = 0; i < n; ++i) {
    const double u = UniformAt(7, i);
    ASSERT_GE(u, 0);
    ASSERT_LT(u, 1);
    sum += u;
    squares += u * u;
    neighbours += (u - 0.5) * (before - 0.5);
    before = u;
  }
  // Four standard errors.
  EXPECT_NEAR(sum / n, 0.5, 4 * 0.2887 / 141.4);
  EXPECT_NEAR(squares / n, 1 / 3.0, 4 * 0.2981 / 141.4);
  EXPECT_NEAR(neighbours / n, 0, 4 * (1 / 12.0) / 141.4);
}

}  // namespace
}  // namespace sluice
