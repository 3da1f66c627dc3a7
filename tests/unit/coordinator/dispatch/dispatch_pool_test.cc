// Requests whose prompts are pooled: they sample nothing, and end with a
// vector.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/dispatch/block_driver.h"
#include "tests/unit/coordinator/dispatch/dispatch_testing.h"

namespace sluice {
namespace {

using testing::HasSubstr;
using testing::SizeIs;

class DriverPoolTest : public testing::Test {
 protected:
  DriverPoolTest()
      : driver_({.tokenizer = &tokenizer_,
                 .vocab_size = FakeTokenizer::kAsciiVocab,
                 .hidden_size = 2,
                 .eos_tokens = {FakeTokenizer::kAsciiEos},
                 .clock = &clock_}) {}

  void Start(int64_t epoch) {
    StepScheduler::Options options;
    options.gbs = 4;
    options.max_step_tokens = 16;
    options.kv_pages = 100;
    options.page_tokens = 8;
    ASSERT_TRUE(driver_.StartEpoch(PlanEpoch(epoch), options).ok());
  }

  static StepResult NoAnswer(const StepPlan& plan) {
    return {plan.epoch, plan.block, plan.step, {}};
  }

  static Request Pooled(int64_t index, absl::string_view prompt) {
    Request request = MakeRequest(1, index, prompt, 0);
    request.endpoint = Endpoint::kEmbeddings;
    request.pooling = Pooling::kMean;
    return request;
  }

  FakeTokenizer tokenizer_;
  ManualClock clock_;
  BlockDriver driver_;
};

TEST_F(DriverPoolTest, PoolsAWholePromptAndSamplesNothing) {
  driver_.Add(Pooled(0, std::string(20, 'a')));
  driver_.Add(MakeRequest(1, 1, "ab", 1));
  Start(1);
  std::vector<StepPlan> plans = driver_.TakePlans();
  ASSERT_THAT(plans, SizeIs(1));
  ASSERT_THAT(plans[0].admit, SizeIs(1));  // 16 tokens a step
  EXPECT_EQ(plans[0].admit[0].pooling, Pooling::kMean);
  EXPECT_EQ(plans[0].admit[0].max_positions, 20);
  EXPECT_FALSE(plans[0].micro_batches[0].segments[0].sample);
  ASSERT_TRUE(driver_.OnResult(NoAnswer(plans[0])).ok());
  // A replay begins with its first token again.
  Start(2);
  plans = driver_.TakePlans();
  EXPECT_EQ(plans[0].micro_batches[0].segments[0].start, 0);
  ASSERT_TRUE(driver_.OnResult(NoAnswer(plans[0])).ok());
  plans = driver_.TakePlans();
  ASSERT_THAT(plans[0].micro_batches[0].segments, SizeIs(2));
  const Segment& last = plans[0].micro_batches[0].segments[0];
  EXPECT_EQ(last.start + last.num_tokens, 20);
  EXPECT_TRUE(last.sample);
  StepResult result{plans[0].epoch, plans[0].block, plans[0].step, {}};
  result.tokens.push_back(
      {plans[0].micro_batches[0].segments[1].sequence, 'x'});
  result.pooled.push_back({last.sequence, {0.5f, -1}});
  ASSERT_TRUE(driver_.OnResult(result).ok());
  const auto finished = driver_.TakeFinished();
  ASSERT_THAT(finished, SizeIs(2));
  const FinishedRequest& pooled = finished[finished[0].request.index];
  EXPECT_EQ(pooled.request.index, 0);
  EXPECT_TRUE(pooled.generation.status.ok());
  EXPECT_FALSE(pooled.generation.decode);
  EXPECT_EQ(pooled.generation.pooled, (std::vector<float>{0.5f, -1}));
  EXPECT_EQ(pooled.generation.generated, 0);
}

TEST_F(DriverPoolTest, VectorsThatWereNotAskedForEndTheEpoch) {
  driver_.Add(Pooled(0, "abc"));
  Start(1);
  const StepPlan plan = driver_.TakePlans()[0];
  const SequenceId id = plan.admit[0].sequence;
  const auto result = [&](std::vector<PooledVector> pooled) {
    StepResult result{plan.epoch, plan.block, plan.step, {}};
    result.pooled = std::move(pooled);
    return driver_.OnResult(result);
  };
  for (const std::vector<PooledVector>& bad : {std::vector<PooledVector>{},
                                               {{id, {1, 2, 3}}},
                                               {{SequenceId(77), {1, 2}}},
                                               {{id, {1, 2}}, {id, {1, 2}}}}) {
    const absl::Status status = result(bad);
    EXPECT_TRUE(absl::IsInternal(status)) << status;
    EXPECT_THAT(status.message(),
                HasSubstr("does not hold a vector of 2 for each of its 1"));
  }
  EXPECT_TRUE(result({{id, {1, 2}}}).ok());
  EXPECT_THAT(driver_.TakeFinished(), SizeIs(1));
}

TEST_F(DriverPoolTest, AVectorThatIsNotNumbersIsAnError) {
  driver_.Add(Pooled(0, "abc"));
  Start(1);
  const StepPlan plan = driver_.TakePlans()[0];
  StepResult result{plan.epoch, plan.block, plan.step, {}};
  result.pooled = {
      {plan.admit[0].sequence, {1, std::numeric_limits<float>::infinity()}}};
  ASSERT_TRUE(driver_.OnResult(result).ok());
  const auto finished = driver_.TakeFinished();
  ASSERT_THAT(finished, SizeIs(1));
  EXPECT_EQ(finished[0].generation.status.message(),
            "the model's hidden states are not numbers");
}

}  // namespace
}  // namespace sluice
