#include "runtime/profile/rank_probe.h"

#include <atomic>

#include "gtest/gtest.h"
#include "runtime/collective/shared_collective.h"

namespace sluice {
namespace {

TEST(RankProbeTest, MeasuresWhatRanksAreWorth) {
  MemoryBudget budget(Tier::kHost, uint64_t{128} << 20);
  SharedGroup group(2);
  const auto choice = MeasureRanks(
      {.ranks = 2, .threads = 2, .budget = &budget}, &group, 0.1, nullptr);
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_EQ(choice->ranks, 2);
  EXPECT_GT(choice->memory_share, 0);
  EXPECT_LE(choice->memory_share, 1);
  EXPECT_GT(choice->product_share, 0);
  EXPECT_LE(choice->product_share, 1);
  EXPECT_GT(choice->exchange.bytes_per_second, 0);
  EXPECT_GT(choice->exchange.latency_seconds, 0);
  EXPECT_EQ(budget.used_bytes(), 0);
}

TEST(RankProbeTest, RanksWithProcessorsOfTheirOwnAreAsFastAsOne) {
  MemoryBudget budget(Tier::kHost, uint64_t{64} << 20);
  SharedGroup group(4);
  const auto choice = MeasureRanks(
      {.ranks = 4, .threads = 4, .own_processors = true, .budget = &budget},
      &group, 0.02, nullptr);
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_EQ(choice->memory_share, 1);
  EXPECT_EQ(choice->product_share, 1);
  EXPECT_GT(choice->exchange.bytes_per_second, 0);
}

TEST(RankProbeTest, EndsWithTheGroupsError) {
  MemoryBudget budget(Tier::kHost, uint64_t{64} << 20);
  SharedGroup group(2);
  group.Abort(absl::UnavailableError("a rank is gone"));
  const auto exchange = MeasureExchange(
      {.ranks = 2, .threads = 2, .budget = &budget}, &group, 0.01, nullptr);
  EXPECT_EQ(exchange.status(), absl::UnavailableError("a rank is gone"));
  const std::atomic<bool> cancelled{true};
  EXPECT_EQ(MeasureExchange({.ranks = 2, .threads = 2, .budget = &budget},
                            &group, 0.01, &cancelled)
                .status()
                .code(),
            absl::StatusCode::kCancelled);
}

}  // namespace
}  // namespace sluice
