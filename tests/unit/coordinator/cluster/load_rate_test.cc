#include "coordinator/cluster/load_rate.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

constexpr uint64_t kGigabyte = 1'000'000'000;

TEST(LoadRateTest, IsThatOfTheLastSeconds) {
  LoadRate load;
  EXPECT_EQ(load.bytes_per_second(), 0);
  EXPECT_EQ(TimeLeft(load), absl::InfiniteDuration());
  load.Observe(absl::Seconds(100), 0, 100 * kGigabyte);
  EXPECT_EQ(load.bytes_per_second(), 0);
  // The load runs at two gigabytes a second, then at one.
  for (int s = 1; s <= 20; ++s) {
    load.Observe(absl::Seconds(100 + s), 2 * s * kGigabyte, 100 * kGigabyte);
  }
  EXPECT_EQ(load.bytes_per_second(), 2e9);
  EXPECT_EQ(TimeLeft(load), absl::Seconds(30));
  for (int s = 1; s <= 20; ++s) {
    load.Observe(absl::Seconds(120 + s), (40 + s) * kGigabyte, 100 * kGigabyte);
  }
  EXPECT_EQ(load.bytes_per_second(), 1e9);
  EXPECT_EQ(TimeLeft(load), absl::Seconds(40));
}

TEST(LoadRateTest, StandsStillAndBeginsAnew) {
  LoadRate load;
  for (int s = 0; s <= 100; ++s) load.Observe(absl::Seconds(s), 5, 10);
  EXPECT_EQ(load.bytes_per_second(), 0);
  EXPECT_EQ(TimeLeft(load), absl::InfiniteDuration());
  load.Observe(absl::Seconds(101), 10, 10);
  EXPECT_EQ(TimeLeft(load), absl::ZeroDuration());
  // Another stage is loaded.
  load.Observe(absl::Seconds(102), 3, 20);
  EXPECT_EQ(load.bytes_per_second(), 0);
  load.Observe(absl::Seconds(103), 4, 20);
  EXPECT_EQ(load.bytes_per_second(), 1);
}

TEST(LoadRateTest, SaysItInWords) {
  EXPECT_EQ(RateText(0, absl::Seconds(1)), "");
  EXPECT_EQ(RateText(1.24e9, absl::Seconds(34.2)), ", 1.2 GB/s, 0:35 left");
  EXPECT_EQ(RateText(5e6, absl::Seconds(3725)), ", 5.0 MB/s, 1:02:05 left");
  EXPECT_EQ(RateText(5e6, absl::InfiniteDuration()), ", 5.0 MB/s");
}

}  // namespace
}  // namespace sluice
