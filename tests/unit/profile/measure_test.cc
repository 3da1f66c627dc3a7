#include "runtime/profile/measure.h"

#include <gtest/gtest.h>

#include <ctime>

#include "absl/time/clock.h"
#include "common/threads/clock.h"

namespace sluice {
namespace {

TEST(MeasureTest, TypicalIsWhatAFourthIsBelow) {
  EXPECT_EQ(TypicalSeconds({5}), 5);
  EXPECT_EQ(TypicalSeconds({9, 1}), 1);
  EXPECT_EQ(TypicalSeconds({8, 7, 6, 5, 4, 3, 2, 1}), 3);
}

TEST(MeasureTest, CallsOnceMoreThanAsked) {
  int calls = 0;
  const auto seconds = TimeCalls(0, 5, nullptr, [&] {
    ++calls;
    return absl::OkStatus();
  });
  ASSERT_TRUE(seconds.ok());
  EXPECT_GE(*seconds, 0);
  EXPECT_EQ(calls, 6);
}

TEST(MeasureTest, ACallThatTakesAllTheTimeIsNotRepeated) {
  int calls = 0;
  ASSERT_TRUE(TimeCalls(1e-9, 1000, nullptr, [&] {
                ++calls;
                absl::SleepFor(absl::Milliseconds(1));
                return absl::OkStatus();
              }).ok());
  EXPECT_EQ(calls, 2);  // one that does not count
}

TEST(MeasureTest, ALapIsTimeOnTheClockWhereTimeIsNotLimited) {
  for (const double quota : {0.0, 1e6}) {
    const double start = MonotonicSeconds();
    ComputeStopwatch watch(quota);
    absl::SleepFor(absl::Milliseconds(2));
    const double lap = watch.Lap();
    EXPECT_GE(lap, 0.002);
    EXPECT_LE(lap, MonotonicSeconds() - start);
  }
}

TEST(MeasureTest, ALapUnderAQuotaIsTheProcessorTimeThatItTookOverTheQuota) {
  constexpr double kQuota = 1e-6;
  const std::clock_t before = std::clock();
  ComputeStopwatch watch(kQuota);
  const std::clock_t start = std::clock();
  while (std::clock() - start < CLOCKS_PER_SEC / 100) {
  }
  const double lap = watch.Lap();
  const double at_most =
      static_cast<double>(std::clock() - before + 1) / CLOCKS_PER_SEC;
  EXPECT_GE(lap, 0.0099 / kQuota);  // std::clock() is coarser
  EXPECT_LE(lap, at_most / kQuota);
}

TEST(MeasureTest, LapsFollowEachOther) {
  constexpr double kQuota = 1e-6;
  ComputeStopwatch watch(kQuota);
  const std::clock_t start = std::clock();
  while (std::clock() - start < CLOCKS_PER_SEC / 20) {
  }
  EXPECT_GE(watch.Lap(), 0.049 / kQuota);
  EXPECT_LT(watch.Lap(), 0.049 / kQuota);  // of the second alone
}

TEST(MeasureTest, ErrorsEndIt) {
  int calls = 0;
  EXPECT_EQ(TimeCalls(1000, 5, nullptr,
                      [&] {
                        return ++calls == 3 ? absl::DataLossError("gone")
                                            : absl::OkStatus();
                      })
                .status()
                .code(),
            absl::StatusCode::kDataLoss);
  EXPECT_EQ(calls, 3);
  std::atomic<bool> cancelled{false};
  EXPECT_EQ(TimeCalls(1000, 5, &cancelled,
                      [&] {
                        cancelled = true;
                        return absl::OkStatus();
                      })
                .status()
                .code(),
            absl::StatusCode::kCancelled);
}

TEST(MeasureTest, NumbersAreSmallAndDiffer) {
  float x[1000];
  FillFloats(x, 1000);
  for (int i = 0; i < 1000; ++i) {
    EXPECT_LE(std::abs(x[i]), 1);
    EXPECT_TRUE(i == 0 || x[i] != x[i - 1]);
  }
}

}  // namespace
}  // namespace sluice
