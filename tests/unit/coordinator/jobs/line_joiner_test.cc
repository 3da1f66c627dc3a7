#include "coordinator/jobs/line_joiner.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

FinishedRequest Part(int64_t job, int64_t index, int32_t part, int32_t parts) {
  FinishedRequest finished;
  finished.request.job = JobId(job);
  finished.request.index = index;
  finished.request.part = part;
  finished.request.num_parts = parts;
  finished.generation.text = std::string(1000, 'x');
  finished.generation.generated = 100 * part;
  return finished;
}

TEST(LineJoinerTest, ALineIsWholeWhenItsLastRequestHasEnded) {
  LineJoiner joiner;
  const auto alone = joiner.Add(Part(1, 0, 0, 1));
  ASSERT_TRUE(alone);
  EXPECT_EQ(alone->size(), 1u);
  EXPECT_FALSE(joiner.Add(Part(1, 5, 2, 3)));
  EXPECT_FALSE(joiner.Add(Part(1, 6, 0, 2)));  // of another line
  EXPECT_FALSE(joiner.Add(Part(2, 5, 0, 3)));  // of another job
  EXPECT_FALSE(joiner.Add(Part(1, 5, 0, 3)));
  EXPECT_GT(joiner.bytes(), 4000);
  // One that ends again changes nothing.
  EXPECT_FALSE(joiner.Add(Part(1, 5, 0, 3)));
  const auto line = joiner.Add(Part(1, 5, 1, 3));
  ASSERT_TRUE(line);
  ASSERT_EQ(line->size(), 3u);
  for (int32_t part = 0; part < 3; ++part) {
    EXPECT_EQ((*line)[part].request.part, part);
    EXPECT_EQ((*line)[part].generation.generated, 100 * part);
  }
  EXPECT_TRUE(joiner.Add(Part(1, 6, 1, 2)));
}

TEST(LineJoinerTest, OfAJobThatHasEndedNothingStays) {
  LineJoiner joiner;
  joiner.Add(Part(1, 0, 0, 2));
  const int64_t one = joiner.bytes();
  joiner.Add(Part(2, 0, 0, 2));
  joiner.Add(Part(2, 9, 1, 2));
  joiner.Add(Part(3, 0, 0, 2));
  EXPECT_EQ(joiner.bytes(), 4 * one);
  joiner.Forget(JobId(2));
  EXPECT_EQ(joiner.bytes(), 2 * one);
  EXPECT_TRUE(joiner.Add(Part(1, 0, 1, 2)));
  EXPECT_TRUE(joiner.Add(Part(3, 0, 1, 2)));
  EXPECT_EQ(joiner.bytes(), 0);
}

}  // namespace
}  // namespace sluice
