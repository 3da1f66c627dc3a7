// Which requests a driver begins first, and what of them counts.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "coordinator/dispatch/block_driver.h"
#include "tests/unit/coordinator/dispatch/dispatch_testing.h"

namespace sluice {
namespace {

using testing::SizeIs;

class DispatchTurnsTest : public testing::Test {
 protected:
  void Start(StepScheduler::Options options) {
    options.kv_pages = 1000;
    options.page_tokens = 8;
    ASSERT_TRUE(driver_.StartEpoch(PlanEpoch(1), options).ok());
  }

  // Answers with `token` for each sequence that samples.
  static StepResult Answer(const StepPlan& plan, int32_t token) {
    StepResult result{plan.epoch, plan.block, plan.step, {}};
    for (const MicroBatch& batch : plan.micro_batches) {
      for (const Segment& segment : batch.segments) {
        if (segment.sample) result.tokens.push_back({segment.sequence, token});
      }
    }
    return result;
  }

  FakeTokenizer tokenizer_;
  ManualClock clock_;
  BlockDriver driver_{{.tokenizer = &tokenizer_,
                       .vocab_size = FakeTokenizer::kAsciiVocab,
                       .eos_tokens = {FakeTokenizer::kAsciiEos},
                       .clock = &clock_}};
  absl::flat_hash_map<SequenceId, int64_t> of_;  // jobs of sequences
};

TEST_F(DispatchTurnsTest, APromptCountsOnceForAllItsCandidates) {
  Start({.gbs = 4, .max_step_tokens = 32});
  for (int32_t part = 0; part < 3; ++part) {
    Request request = MakeRequest(1, 0, "prompt", 2);
    request.part = part;
    request.num_parts = request.candidates = 3;
    driver_.Add(std::move(request));
  }
  BlockDriver::Stats stats;
  JobProgress job;
  for (int i = 0; i < 2; ++i) {
    for (const StepPlan& plan : driver_.TakePlans()) {
      ASSERT_TRUE(driver_.OnResult(Answer(plan, 65)).ok());
    }
    const BlockDriver::Stats more = driver_.TakeStats();
    stats.prompt_tokens += more.prompt_tokens;
    stats.tokens += more.tokens;
    const auto progress = driver_.TakeProgress();
    job.prompt_tokens += progress.at(JobId(1)).prompt_tokens;
    job.new_tokens += progress.at(JobId(1)).new_tokens;
  }
  ASSERT_THAT(driver_.TakeFinished(), SizeIs(3));
  const int64_t prompt = std::ssize(MakeRequest(1, 0, "prompt", 2).prompt);
  EXPECT_EQ(stats.prompt_tokens, prompt);
  EXPECT_EQ(job.prompt_tokens, prompt);
  EXPECT_EQ(stats.tokens, 6);
  EXPECT_EQ(job.new_tokens, 6);
}

Request MakeBeams(int64_t job, absl::string_view prompt, int32_t width) {
  Request request = MakeRequest(job, 0, prompt, 3);
  request.candidates = request.choices = request.num_parts = width;
  request.beams = BeamParams();
  return request;
}

TEST_F(DispatchTurnsTest, ASearchThatHasNotBegunWaitsForItsTurn) {
  Start({.gbs = 1, .max_step_tokens = 32});
  const Request first = MakeRequest(1, 0, "a long prompt", 2);
  driver_.Add(first);
  driver_.Add(MakeBeams(2, "short", 2));
  const std::vector<StepPlan> plans = driver_.TakePlans();
  ASSERT_THAT(plans, SizeIs(1));
  ASSERT_THAT(plans[0].admit, SizeIs(1));
  EXPECT_EQ(plans[0].admit[0].prompt_tokens, std::ssize(first.prompt));
}

TEST_F(DispatchTurnsTest, ASearchCountsForAllItsBeams) {
  const Request search = MakeBeams(1, "prompt", 5);
  driver_.Add(search);
  driver_.Add(MakeRequest(2, 0, "other", 2));
  const int64_t other = std::ssize(MakeRequest(2, 0, "other", 2).prompt);
  EXPECT_EQ(driver_.ExpectedLoad().requests, 6);
  EXPECT_EQ(driver_.ExpectedLoad().prompt_tokens,
            5 * std::ssize(search.prompt) + other);
}

// A search goes on with the likeliest tokens that the last stage tells.
TEST_F(DispatchTurnsTest, LikeliestTokensAreOnesThatThereAre) {
  constexpr float kNone = std::numeric_limits<float>::quiet_NaN();
  const int32_t vocab = FakeTokenizer::kAsciiVocab;
  const std::vector<TokenLogprob> many(4, {65, -1});
  for (const std::vector<TokenLogprob>& top :
       {std::vector<TokenLogprob>{{vocab, -1}},
        {{-1, -1}},
        {{65, kNone}},
        many}) {
    BlockDriver driver({.tokenizer = &tokenizer_,
                        .vocab_size = vocab,
                        .eos_tokens = {FakeTokenizer::kAsciiEos},
                        .clock = &clock_});
    ASSERT_TRUE(driver
                    .StartEpoch(PlanEpoch(1), {.gbs = 4,
                                               .max_step_tokens = 32,
                                               .kv_pages = 1000,
                                               .page_tokens = 8})
                    .ok());
    driver.Add(MakeBeams(1, "prompt", 2));
    const std::vector<StepPlan> plans = driver.TakePlans();
    ASSERT_THAT(plans, SizeIs(1));
    StepResult wrong = Answer(plans[0], 65);
    wrong.tokens.at(0).top = top;
    EXPECT_EQ(driver.OnResult(wrong).code(), absl::StatusCode::kInternal);
    StepResult right = Answer(plans[0], 65);
    right.tokens.at(0).top = {{65, -1}, {66, -2}, {67, -3}};
    EXPECT_TRUE(driver.OnResult(right).ok());
  }
}

// Of two jobs, the one whose answers end early is expected to go on doing so;
// what had begun goes first.
TEST_F(DispatchTurnsTest, TheLongestGoFirstByWhatTheJobsAnswersTook) {
  Start({.gbs = 1, .max_step_tokens = 16, .order = Order::kLongest});
  std::vector<std::pair<int64_t, int64_t>> begun;
  const auto run = [&](int64_t steps) {
    for (; steps > 0; --steps) {
      for (const StepPlan& plan : driver_.TakePlans()) {
        // Job 1 ends at once, job 2 at its maximum.
        StepResult result = Answer(plan, 65);
        for (SampledToken& token : result.tokens) {
          if (of_[token.sequence] == 1) token.token = FakeTokenizer::kAsciiEos;
        }
        ASSERT_TRUE(driver_.OnResult(std::move(result)).ok());
      }
      for (const FinishedRequest& f : driver_.TakeFinished()) {
        begun.emplace_back(f.request.job.value(), f.request.index);
      }
    }
  };
  int64_t id = 0;
  const auto add = [&](int64_t job, int64_t index, int32_t max_tokens,
                       int64_t priority = 0) {
    Request request = MakeRequest(job, index, "p", max_tokens);
    request.priority = priority;
    of_[SequenceId(++id)] = job;
    driver_.Add(std::move(request));
  };
  for (int64_t i = 0; i < 40; ++i) add(1, i, 20);
  run(45);
  ASSERT_THAT(begun, SizeIs(40));
  begun.clear();
  add(1, 100, 60);  // expected: 3
  add(2, 0, 8);
  add(2, 1, 12);
  add(1, 101, 10, 5);  // a job moved to the front
  run(30);
  const std::vector<std::pair<int64_t, int64_t>> expected = {
      {1, 101}, {2, 1}, {2, 0}, {1, 100}};
  EXPECT_EQ(begun, expected);
}

}  // namespace
}  // namespace sluice
