#include "common/event_rate.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

TEST(EventRateTest, OneLumpIsNoRate) {
  EventRate rate;
  EXPECT_EQ(rate.PerSecond(absl::Seconds(1)), 0);
  rate.Add(absl::Seconds(1), 1000);
  EXPECT_EQ(rate.PerSecond(absl::Seconds(1)), 0);
  EXPECT_EQ(rate.PerSecond(absl::Seconds(100)), 0);
}

TEST(EventRateTest, ManyLumpsASecondCountOverTheLastSeconds) {
  EventRate rate;
  absl::Duration now = absl::Seconds(100);
  const auto run = [&](int seconds, int per_second) {
    for (int i = 0; i < seconds * 20; ++i) {
      now += absl::Milliseconds(50);
      rate.Add(now, per_second / 20);
    }
  };
  run(20, 200);
  EXPECT_NEAR(rate.PerSecond(now), 200, 2);
  run(7, 1000);  // what was before is forgotten
  EXPECT_NEAR(rate.PerSecond(now), 1000, 10);
}

TEST(EventRateTest, StepsThatTakeAMinuteHaveARate) {
  EventRate rate;
  for (int step = 0; step < 10; ++step) {
    rate.Add(absl::Minutes(step), 30);
    if (step == 0) continue;
    EXPECT_DOUBLE_EQ(rate.PerSecond(absl::Minutes(step)), 0.5);
    EXPECT_DOUBLE_EQ(rate.PerSecond(absl::Minutes(step) + absl::Seconds(59)),
                     0.5);
  }
}

TEST(EventRateTest, FallsWhenTheNextLumpIsOverdue) {
  EventRate rate;
  for (int i = 0; i < 5; ++i) rate.Add(absl::Seconds(10 * i), 100);
  const absl::Duration last = absl::Seconds(40);
  EXPECT_DOUBLE_EQ(rate.PerSecond(last + absl::Seconds(20)), 10);
  EXPECT_DOUBLE_EQ(rate.PerSecond(last + absl::Seconds(60)), 5);
  EXPECT_LT(rate.PerSecond(last + absl::Hours(10)), 0.02);
}

TEST(EventRateTest, ForgetsWhatItIsToldTo) {
  EventRate rate;
  rate.Add(absl::Seconds(1), 10);
  rate.Add(absl::Seconds(2), 10);
  EXPECT_EQ(rate.PerSecond(absl::Seconds(2)), 10);
  rate.Clear();
  EXPECT_EQ(rate.PerSecond(absl::Seconds(2)), 0);
  rate.Add(absl::Hours(1), 10);
  rate.Add(absl::Hours(1) + absl::Seconds(1), 10);
  EXPECT_EQ(rate.PerSecond(absl::Hours(1) + absl::Seconds(1)), 10);
}

}  // namespace
}  // namespace sluice
