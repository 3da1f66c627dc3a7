#include "coordinator/planning/length_histogram.h"

#include <gtest/gtest.h>

#include <vector>

#include "coordinator/planning/prompt_beginnings.h"

namespace sluice {
namespace {

TEST(LengthHistogramTest, LikeLengthsShareAClassWithTheirAverage) {
  LengthHistogram histogram;
  histogram.Add(128, 32);
  histogram.Add(130, 34);
  histogram.Add(1000, 1);
  const Workload workload = histogram.ToWorkload();
  ASSERT_EQ(workload.classes.size(), 2u);
  EXPECT_EQ(workload.classes[0], (LengthClass{129, 33, 2}));
  EXPECT_EQ(workload.classes[1], (LengthClass{1000, 1, 1}));
  EXPECT_EQ(histogram.requests(), 3);
}

TEST(LengthHistogramTest, NumberOfClassesIsBounded) {
  LengthHistogram histogram;
  int64_t prompts = 0;
  for (int32_t prompt = 1; prompt <= 100'000; prompt += 7) {
    histogram.Add(prompt, prompt % 512 + 1);
    prompts += prompt;
  }
  const Workload workload = histogram.ToWorkload();
  EXPECT_LT(workload.classes.size(), 700u);
  EXPECT_NEAR(workload.prompt_tokens(), static_cast<double>(prompts),
              0.001 * static_cast<double>(prompts));
}

TEST(LengthHistogramTest, OutputsAreScaledButNeverVanish) {
  LengthHistogram histogram;
  histogram.Add(10, 100, 5);
  histogram.Add(10, 1, 5);
  histogram.Add(10, 0, 5);  // scored, not generated
  const Workload workload = histogram.ToWorkload(0.25);
  ASSERT_EQ(workload.classes.size(), 3u);
  EXPECT_EQ(workload.classes[0].output, 1);
  EXPECT_EQ(workload.classes[1].output, 1);
  EXPECT_EQ(workload.classes[2].output, 25);
}

TEST(LengthHistogramTest, AddsAnotherSoManyTimes) {
  LengthHistogram part;
  part.Add(100, 20, 2);
  LengthHistogram all;
  all.Add(100, 10, 1);
  all.Add(part, 3);
  EXPECT_EQ(all.requests(), 7);
  EXPECT_DOUBLE_EQ(all.ToWorkload().prompt_tokens(), 700);
}

TEST(LengthHistogramTest, EmptyIsAnEmptyWorkload) {
  EXPECT_TRUE(LengthHistogram().ToWorkload().classes.empty());
}

TEST(LengthHistogramTest, SharedTokensAreAverages) {
  LengthHistogram histogram, all;
  histogram.Add(128, 32, 2, 96);
  histogram.Add(130, 32, 2, 32);
  histogram.Add(1, 1);
  all.Add(histogram, 3);
  const Workload workload = all.ToWorkload();
  ASSERT_EQ(workload.classes.size(), 2u);
  EXPECT_EQ(workload.classes[0].shared, 0);
  EXPECT_EQ(workload.classes[1].shared, 64);
  EXPECT_EQ(workload.shared_tokens(), 12 * 64);
  EXPECT_TRUE(workload.Check().ok());
}

TEST(PromptBeginningsTest, CountsWholePagesOfEarlierPrompts) {
  PromptBeginnings beginnings;
  std::vector<int32_t> prompt(100, 7);
  EXPECT_EQ(beginnings.Add(prompt), 0);
  EXPECT_EQ(beginnings.Add(prompt), 96);
  prompt[70] = 8;
  EXPECT_EQ(beginnings.Add(prompt), 64);
  // One token is left to be computed.
  prompt.resize(64);
  EXPECT_EQ(beginnings.Add(prompt), 32);
  prompt[0] = 8;
  EXPECT_EQ(beginnings.Add(prompt), 0);
  EXPECT_EQ(beginnings.Add({}), 0);
}

}  // namespace
}  // namespace sluice
