#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "coordinator/dispatch/block_driver.h"
#include "tests/unit/coordinator/dispatch/dispatch_testing.h"

namespace sluice {
namespace {

using testing::HasSubstr;
using testing::SizeIs;

class BlockDriverTest : public testing::Test {
 protected:
  BlockDriverTest() : driver_(Options()) {}

  BlockDriver::Options Options() {
    return {.tokenizer = &tokenizer_,
            .vocab_size = FakeTokenizer::kAsciiVocab,
            .eos_tokens = {FakeTokenizer::kAsciiEos},
            .clock = &clock_};
  }

  void Start(int64_t epoch, int32_t num_blocks = 1, int64_t kv_pages = 100,
             int32_t steps_in_flight = 0) {
    StepScheduler::Options options;
    options.num_blocks = num_blocks;
    options.steps_in_flight = steps_in_flight;
    options.gbs = 4;
    options.max_step_tokens = 16;
    options.kv_pages = kv_pages;
    options.page_tokens = 8;
    ASSERT_TRUE(driver_.StartEpoch(PlanEpoch(epoch), options).ok());
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

  // Answers with the scores that the plan asks for: -p for position p.
  static StepResult AnswerScored(const StepPlan& plan, int32_t token) {
    StepResult result = Answer(plan, token);
    for (const MicroBatch& batch : plan.micro_batches) {
      for (const Segment& segment : batch.segments) {
        if (segment.score_begin == segment.score_end) continue;
        TokenScores& scores = result.scores.emplace_back();
        scores.sequence = segment.sequence;
        scores.begin = segment.score_begin;
        for (int32_t p = segment.score_begin; p < segment.score_end; ++p) {
          scores.logprobs.push_back(-static_cast<float>(p));
        }
      }
    }
    return result;
  }

  static Request Scored(int64_t index, absl::string_view prompt,
                        int32_t max_tokens, int32_t logprobs = 0) {
    Request request = MakeRequest(1, index, prompt, max_tokens);
    request.echo = true;
    request.sampling.logprobs = logprobs;
    return request;
  }

  FakeTokenizer tokenizer_;
  ManualClock clock_;
  BlockDriver driver_;
};

TEST_F(BlockDriverTest, SendsTokensWithTheirSegments) {
  driver_.Add(MakeRequest(1, 0, "abc", 3));
  EXPECT_THAT(driver_.TakePlans(), SizeIs(0));  // no epoch yet
  Start(1);
  std::vector<StepPlan> plans = driver_.TakePlans();
  ASSERT_THAT(plans, SizeIs(1));
  EXPECT_EQ(plans[0].epoch, PlanEpoch(1));
  ASSERT_THAT(plans[0].admit, SizeIs(1));
  ASSERT_THAT(plans[0].micro_batches, SizeIs(1));
  EXPECT_EQ(plans[0].micro_batches[0].tokens,
            (std::vector<int32_t>{'a', 'b', 'c'}));
  EXPECT_THAT(driver_.TakePlans(), SizeIs(0));  // in flight
  EXPECT_EQ(driver_.blocks_in_flight(), 1);
  EXPECT_EQ(driver_.held_rows(), 0);
  ASSERT_TRUE(driver_.OnResult(Answer(plans[0], 'd')).ok());
  EXPECT_EQ(driver_.held_rows(), 3);
  plans = driver_.TakePlans();
  ASSERT_THAT(plans, SizeIs(1));
  EXPECT_EQ(plans[0].micro_batches[0].tokens, (std::vector<int32_t>{'d'}));
  EXPECT_EQ(plans[0].micro_batches[0].segments[0].start, 3);
  ASSERT_TRUE(driver_.OnResult(Answer(plans[0], 'e')).ok());
  EXPECT_EQ(driver_.held_rows(), 4);
  driver_.StopEpoch();
  EXPECT_EQ(driver_.held_rows(), 0);
}

TEST_F(BlockDriverTest, APromptsSlicesFollowEachOther) {
  driver_.Add(MakeRequest(1, 0, std::string(40, 'a'), 3));
  Start(1, 1, 100, 3);
  const std::vector<StepPlan> plans = driver_.TakePlans();
  ASSERT_THAT(plans, SizeIs(3));
  EXPECT_EQ(plans[2].micro_batches[0].segments[0].start, 32);
  EXPECT_EQ(plans[2].micro_batches[0].tokens.size(), 8u);
  EXPECT_EQ(driver_.blocks_in_flight(), 1);
  EXPECT_EQ(driver_.oldest_step(), plans[0].step);
  // They come back in the order in which they were sent.
  EXPECT_EQ(driver_.OnResult(Answer(plans[1], 'x')).code(),
            absl::StatusCode::kInternal);
  ASSERT_TRUE(driver_.OnResult(Answer(plans[0], 'x')).ok());
  EXPECT_EQ(driver_.oldest_step(), plans[1].step);
  EXPECT_THAT(driver_.TakePlans(), SizeIs(0));
  ASSERT_TRUE(driver_.OnResult(Answer(plans[1], 'x')).ok());
  ASSERT_TRUE(driver_.OnResult(Answer(plans[2], 'x')).ok());
  EXPECT_EQ(driver_.oldest_step(), std::nullopt);
  const StepPlan decode = driver_.TakePlans().at(0);
  EXPECT_EQ(decode.micro_batches[0].tokens, (std::vector<int32_t>{'x'}));
  EXPECT_EQ(decode.micro_batches[0].segments[0].start, 40);
  EXPECT_EQ(driver_.TakeStats().prompt_tokens, 40);
}

TEST_F(BlockDriverTest, SlicesOfALostEpochAreReplayed) {
  driver_.Add(MakeRequest(1, 0, std::string(40, 'a'), 3));
  Start(1, 1, 100, 3);
  const std::vector<StepPlan> lost = driver_.TakePlans();
  ASSERT_THAT(lost, SizeIs(3));
  ASSERT_TRUE(driver_.OnResult(Answer(lost[0], 'x')).ok());
  driver_.StopEpoch();
  Start(2, 1, 100, 3);
  EXPECT_EQ(driver_.OnResult(Answer(lost[1], 'x')).code(),
            absl::StatusCode::kFailedPrecondition);
  const std::vector<StepPlan> plans = driver_.TakePlans();
  ASSERT_THAT(plans, SizeIs(3));
  EXPECT_EQ(plans[0].micro_batches[0].segments[0].start, 0);
  for (const StepPlan& plan : plans) {
    ASSERT_TRUE(driver_.OnResult(Answer(plan, 'x')).ok());
  }
  EXPECT_EQ(driver_.TakeStats().prompt_tokens, 40) << "counted once";
}

TEST_F(BlockDriverTest, ScoresOfSlicesComeInTheirOrder) {
  driver_.Add(Scored(0, std::string(40, 'a'), 0));
  Start(1, 1, 100, 4);
  const std::vector<StepPlan> plans = driver_.TakePlans();
  ASSERT_THAT(plans, SizeIs(3));
  for (const StepPlan& plan : plans) {
    ASSERT_TRUE(driver_.OnResult(AnswerScored(plan, 'x')).ok());
  }
  const std::vector<FinishedRequest> finished = driver_.TakeFinished();
  ASSERT_THAT(finished, SizeIs(1));
  ASSERT_TRUE(finished[0].generation.status.ok());
  const TokenScores& scores = finished[0].generation.prompt_scores;
  ASSERT_THAT(scores.logprobs, SizeIs(39));
  for (int32_t p = 1; p < 40; ++p) EXPECT_EQ(scores.logprobs[p - 1], -p);
}

TEST_F(BlockDriverTest, ACancelledRequestsSlicesComeBackToNobody) {
  driver_.Add(MakeRequest(1, 0, std::string(60, 'a'), 3));
  Start(1, 1, 100, 3);
  const std::vector<StepPlan> plans = driver_.TakePlans();
  ASSERT_THAT(plans, SizeIs(3));
  driver_.Cancel(JobId(1));
  EXPECT_THAT(driver_.TakeFinished(), SizeIs(1));
  for (const StepPlan& plan : plans) {
    EXPECT_THAT(driver_.TakePlans(), SizeIs(0)) << "a plan in flight names it";
    ASSERT_TRUE(driver_.OnResult(Answer(plan, 'x')).ok());
  }
  const StepPlan release = driver_.TakePlans().at(0);
  EXPECT_THAT(release.release, SizeIs(1));
  EXPECT_THAT(release.micro_batches, SizeIs(0));
}

TEST_F(BlockDriverTest, ReplaysWithAllTokensKnown) {
  driver_.Add(MakeRequest(1, 0, "abc", 9));
  driver_.Add(MakeRequest(1, 1, "x", 9));
  Start(1);
  const StepPlan first = driver_.TakePlans().at(0);
  ASSERT_TRUE(driver_.OnResult(Answer(first, 'd')).ok());
  const StepPlan lost = driver_.TakePlans().at(0);
  driver_.StopEpoch();
  driver_.Add(MakeRequest(1, 2, "new", 9));
  Start(2);
  const StepPlan plan = driver_.TakePlans().at(0);
  EXPECT_EQ(
      plan.micro_batches[0].tokens,
      (std::vector<int32_t>{'a', 'b', 'c', 'd', 'x', 'd', 'n', 'e', 'w'}));
  EXPECT_EQ(plan.admit[0].prompt_tokens, 3);
  // A late answer of the lost epoch is not taken.
  EXPECT_EQ(driver_.OnResult(Answer(lost, 'z')).code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(driver_.TakeStats().replays, 2);
  EXPECT_EQ(driver_.TakeProgress().at(JobId(1)).replays, 2);
}

TEST_F(BlockDriverTest, CountsEachPositionOfAPromptOnce) {
  const auto prompt_tokens = [this] {
    const auto stats = driver_.TakeProgress();
    const auto it = stats.find(JobId(1));
    return it == stats.end() ? 0 : it->second.prompt_tokens;
  };
  // The prompt takes two steps of at most 16 tokens.
  driver_.Add(MakeRequest(1, 0, "abcdefghijklmnopqrst", 2));
  Start(1);
  ASSERT_TRUE(driver_.OnResult(Answer(driver_.TakePlans().at(0), 66)).ok());
  EXPECT_EQ(prompt_tokens(), 16);
  Start(2);  // all again
  ASSERT_TRUE(driver_.OnResult(Answer(driver_.TakePlans().at(0), 66)).ok());
  EXPECT_EQ(prompt_tokens(), 0);
  ASSERT_TRUE(driver_.OnResult(Answer(driver_.TakePlans().at(0), 66)).ok());
  EXPECT_EQ(prompt_tokens(), 4);
  ASSERT_TRUE(driver_.OnResult(Answer(driver_.TakePlans().at(0), 66)).ok());
  EXPECT_THAT(driver_.TakeFinished(), SizeIs(1));
  EXPECT_EQ(prompt_tokens(), 0);
  // A prompt that is only scored has no step for its last token.
  driver_.Add(Scored(1, "abc", 0));
  ASSERT_TRUE(
      driver_.OnResult(AnswerScored(driver_.TakePlans().at(0), 66)).ok());
  EXPECT_THAT(driver_.TakeFinished(), SizeIs(1));
  EXPECT_EQ(prompt_tokens(), 3);
  // An error takes back its request's counts.
  driver_.Add(MakeRequest(1, 2, "abcdefghijklmnopqrst", 2));
  ASSERT_TRUE(driver_.OnResult(Answer(driver_.TakePlans().at(0), 66)).ok());
  driver_.Cancel(JobId(1));
  EXPECT_EQ(prompt_tokens(), 0);
}

TEST_F(BlockDriverTest, CountsTokensAsTheyAreMade) {
  driver_.Add(MakeRequest(1, 0, std::string(20, 'a'), 9));
  Start(1);
  // With 16 tokens a step, the prompt takes two.
  ASSERT_TRUE(driver_.OnResult(Answer(driver_.TakePlans().at(0), 'd')).ok());
  BlockDriver::Stats stats = driver_.TakeStats();
  EXPECT_EQ(stats.prompt_tokens, 16);
  EXPECT_EQ(stats.tokens, 0);
  ASSERT_TRUE(driver_.OnResult(Answer(driver_.TakePlans().at(0), 'd')).ok());
  stats = driver_.TakeStats();
  EXPECT_EQ(stats.prompt_tokens, 4);
  EXPECT_EQ(stats.tokens, 1);
  ASSERT_TRUE(driver_.OnResult(Answer(driver_.TakePlans().at(0), 'e')).ok());
  EXPECT_EQ(driver_.TakeStats().tokens, 1);
  // Recomputed tokens are not counted again.
  Start(2);
  ASSERT_TRUE(driver_.OnResult(Answer(driver_.TakePlans().at(0), 'f')).ok());
  ASSERT_TRUE(driver_.OnResult(Answer(driver_.TakePlans().at(0), 'f')).ok());
  stats = driver_.TakeStats();
  EXPECT_EQ(stats.prompt_tokens, 0);
  EXPECT_EQ(stats.tokens, 1);
  EXPECT_EQ(stats.latency_seconds.size(), 0u);
}

TEST_F(BlockDriverTest, CountsTheWholePromptOfWhatIsOnlyScored) {
  driver_.Add(Scored(0, "abcd", 0));
  Start(1);
  ASSERT_TRUE(
      driver_.OnResult(AnswerScored(driver_.TakePlans().at(0), 'x')).ok());
  EXPECT_EQ(driver_.TakeFinished().size(), 1u);
  EXPECT_EQ(driver_.TakeStats().prompt_tokens, 4);
}

TEST_F(BlockDriverTest, TimesARequestFromItsJobsAcceptance) {
  Request request = MakeRequest(1, 0, "abc", 1);
  request.accepted = clock_.Now() - absl::Hours(30);
  driver_.Add(request);
  // The wall's clock was set back meanwhile.
  request.accepted = clock_.Now() + absl::Hours(1);
  driver_.Add(request);
  Start(1);
  const StepPlan plan = driver_.TakePlans().at(0);
  clock_.Advance(absl::Seconds(5));
  ASSERT_TRUE(driver_.OnResult(Answer(plan, 'd')).ok());
  const BlockDriver::Stats stats = driver_.TakeStats();
  EXPECT_EQ(stats.queue_seconds, (std::vector<double>{30 * 3600, 0}));
  EXPECT_EQ(stats.latency_seconds, (std::vector<double>{30 * 3600 + 5, 0}));
}

TEST_F(BlockDriverTest, RefusesResultsThatDoNotFit) {
  driver_.Add(MakeRequest(1, 0, "abc", 9));
  Start(1, /*num_blocks=*/2);
  const StepPlan plan = driver_.TakePlans().at(0);
  const StepResult good = Answer(plan, 'd');
  std::vector<StepResult> bad(7, good);
  bad[0].block = BlockId(-1);
  bad[1].block = BlockId(2);
  bad[2].block = BlockId(1);  // idle
  bad[3].step += 1;
  bad[4].tokens.clear();
  bad[5].tokens[0].sequence = SequenceId(99);
  bad[6].tokens[0].token = FakeTokenizer::kAsciiVocab;
  for (const StepResult& result : bad) {
    EXPECT_EQ(driver_.OnResult(result).code(), absl::StatusCode::kInternal);
  }
  EXPECT_TRUE(driver_.OnResult(good).ok());
  EXPECT_EQ(driver_.OnResult(good).code(), absl::StatusCode::kInternal);
}

TEST_F(BlockDriverTest, EndsRequestsThatCanNeverRun) {
  Start(1, 1, /*kv_pages=*/2);
  driver_.Add(MakeRequest(1, 0, "abc", 14));
  driver_.Add(MakeRequest(1, 1, "", 1));
  driver_.Add(MakeRequest(1, 2, "a\x80", 1));
  driver_.Add(MakeRequest(1, 3, "a", 0));
  Request biased = MakeRequest(1, 4, "a", 1);
  biased.sampling.logit_bias = {{128, 1.0f}};
  driver_.Add(biased);
  driver_.Add(MakeRequest(1, 5, "abc", 13));  // fits exactly
  const std::vector<FinishedRequest> finished = driver_.TakeFinished();
  ASSERT_THAT(finished, SizeIs(5));
  EXPECT_EQ(finished[0].generation.status.code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(finished[0].generation.status.message()),
              HasSubstr("room for 17 tokens"));
  EXPECT_EQ(finished[1].generation.status.code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(finished[2].generation.status.code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(finished[3].generation.status.ok());
  EXPECT_EQ(finished[3].generation.finish_reason, FinishReason::kLength);
  EXPECT_EQ(finished[4].generation.status.code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(driver_.live(), 1);
}

TEST_F(BlockDriverTest, EndsReplaysThatNoLongerFit) {
  driver_.Add(MakeRequest(1, 0, "abc", 20));
  Start(1);
  ASSERT_THAT(driver_.TakePlans(), SizeIs(1));
  Start(2, 1, /*kv_pages=*/2);
  ASSERT_THAT(driver_.TakeFinished(), SizeIs(1));
  EXPECT_EQ(driver_.live(), 0);
  EXPECT_EQ(driver_.TakeProgress().at(JobId(1)).running, 0);
}

TEST_F(BlockDriverTest, CancelsWhereverTheRequestIs) {
  for (int i = 0; i < 6; ++i) driver_.Add(MakeRequest(1, i, "abc", 9));
  driver_.Add(MakeRequest(2, 0, "abc", 2));
  Start(1);
  const StepPlan plan = driver_.TakePlans().at(0);  // four of six run
  driver_.Cancel(JobId(1));
  const std::vector<FinishedRequest> finished = driver_.TakeFinished();
  ASSERT_THAT(finished, SizeIs(6));
  for (const FinishedRequest& f : finished) {
    EXPECT_EQ(f.generation.status.code(), absl::StatusCode::kCancelled);
  }
  EXPECT_EQ(driver_.live(), 1);
  // The step in flight still comes back; its tokens are of no interest.
  ASSERT_TRUE(driver_.OnResult(Answer(plan, 'd')).ok());
  const StepPlan next = driver_.TakePlans().at(0);
  EXPECT_THAT(next.release, SizeIs(4));
  ASSERT_THAT(next.admit, SizeIs(1));
  driver_.Cancel(JobId(1));
  EXPECT_THAT(driver_.TakeFinished(), SizeIs(0));
  EXPECT_EQ(driver_.TakeProgress().at(JobId(1)).running, 0);
}

TEST_F(BlockDriverTest, CancelsBetweenEpochs) {
  driver_.Add(MakeRequest(1, 0, "abc", 9));
  driver_.Cancel(JobId(1));
  EXPECT_THAT(driver_.TakeFinished(), SizeIs(1));
  Start(1);
  EXPECT_THAT(driver_.TakePlans(), SizeIs(0));
}

TEST_F(BlockDriverTest, MeasuresTimes) {
  driver_.Add(MakeRequest(1, 0, "abc", 1));
  clock_.Advance(absl::Seconds(2));
  Start(1);
  const StepPlan plan = driver_.TakePlans().at(0);
  EXPECT_EQ(driver_.running(), 1);
  clock_.Advance(absl::Seconds(3));
  ASSERT_TRUE(driver_.OnResult(Answer(plan, 'd')).ok());
  const BlockDriver::Stats stats = driver_.TakeStats();
  EXPECT_EQ(stats.steps, 1);
  EXPECT_EQ(stats.tokens, 1);
  EXPECT_EQ(stats.queue_seconds, (std::vector<double>{2}));
  EXPECT_EQ(stats.step_seconds, (std::vector<double>{3}));
  EXPECT_EQ(stats.latency_seconds, (std::vector<double>{5}));
  EXPECT_EQ(driver_.TakeStats().steps, 0);
}

TEST_F(BlockDriverTest, DividesTimeBetweenPrefillAndDecode) {
  driver_.Add(MakeRequest(1, 0, "abc", 4));
  clock_.Advance(
      absl::Seconds(100));  // nothing in flight: the time does not count
  Start(1);
  StepPlan plan = driver_.TakePlans().at(0);
  clock_.Advance(absl::Seconds(2));  // the prompt of three
  ASSERT_TRUE(driver_.OnResult(Answer(plan, 'd')).ok());
  EXPECT_EQ(driver_.phase_seconds().prefill, 2);
  EXPECT_EQ(driver_.phase_seconds().decode, 0);
  clock_.Advance(absl::Seconds(100));
  driver_.Add(MakeRequest(1, 1, "xyz", 4));
  plan = driver_.TakePlans().at(0);
  clock_.Advance(absl::Seconds(8));  // one token of decode, three of a prompt
  ASSERT_TRUE(driver_.OnResult(Answer(plan, 'e')).ok());
  EXPECT_EQ(driver_.phase_seconds().prefill, 8);
  EXPECT_EQ(driver_.phase_seconds().decode, 2);
}

// Of two pipelines' time at once each counts half: the sum is wall time.
TEST_F(BlockDriverTest, SharesTimeWithOthersThatCompute) {
  BusyTime time;
  BlockDriver::Options options = Options();
  options.busy_time = &time;
  BlockDriver one(options), two(options);
  StepScheduler::Options steps;
  steps.num_blocks = 1;
  steps.gbs = 4;
  steps.max_step_tokens = 16;
  steps.kv_pages = 100;
  steps.page_tokens = 8;
  ASSERT_TRUE(one.StartEpoch(PlanEpoch(1), steps).ok());
  ASSERT_TRUE(two.StartEpoch(PlanEpoch(2), steps).ok());
  one.Add(MakeRequest(1, 0, "abc", 4));
  two.Add(MakeRequest(1, 1, "xyz", 4));
  const StepPlan of_one = one.TakePlans().at(0);
  clock_.Advance(absl::Seconds(2));  // alone
  StepPlan of_two = two.TakePlans().at(0);
  clock_.Advance(absl::Seconds(6));  // both
  ASSERT_TRUE(two.OnResult(Answer(of_two, 'd')).ok());
  EXPECT_EQ(two.phase_seconds().prefill, 3);
  of_two = two.TakePlans().at(0);
  clock_.Advance(absl::Seconds(8));
  ASSERT_TRUE(two.OnResult(Answer(of_two, 'd')).ok());
  EXPECT_EQ(two.phase_seconds().decode, 4);
  EXPECT_EQ(one.phase_seconds().prefill, 0);  // nothing is back yet
  clock_.Advance(absl::Seconds(1));           // alone
  ASSERT_TRUE(one.OnResult(Answer(of_one, 'd')).ok());
  EXPECT_EQ(one.phase_seconds().prefill, 2 + 3 + 4 + 1);
  EXPECT_EQ(one.busy_seconds(), 17);
  EXPECT_EQ(two.busy_seconds(), 14);
  // A step that its epoch's end forgets no longer shares.
  two.TakePlans();
  two.StopEpoch();
  const StepPlan last = one.TakePlans().at(0);
  clock_.Advance(absl::Seconds(5));
  ASSERT_TRUE(one.OnResult(Answer(last, 'd')).ok());
  EXPECT_EQ(one.phase_seconds().decode, 5);
}

TEST_F(BlockDriverTest, ScoresAPromptInChunksAndGeneratesNothing) {
  Start(1);
  driver_.Add(Scored(0, "abcdefghijklmnopqrst", 0));  // 20 tokens, 16 a step
  StepPlan plan = driver_.TakePlans().at(0);
  EXPECT_EQ(plan.admit[0].max_positions, 20);
  Segment segment = plan.micro_batches[0].segments.at(0);
  EXPECT_EQ(segment.num_tokens, 16);
  EXPECT_FALSE(segment.sample);
  EXPECT_EQ(segment.score_begin, 1);
  EXPECT_EQ(segment.score_end, 17);
  EXPECT_EQ(segment.next_token, 'q');
  ASSERT_TRUE(driver_.OnResult(AnswerScored(plan, 'x')).ok());
  // The last token predicts nothing, so that it is not computed.
  plan = driver_.TakePlans().at(0);
  segment = plan.micro_batches[0].segments.at(0);
  EXPECT_EQ(segment.start, 16);
  EXPECT_EQ(segment.num_tokens, 3);
  EXPECT_FALSE(segment.sample);
  EXPECT_EQ(segment.score_begin, 17);
  EXPECT_EQ(segment.score_end, 20);
  EXPECT_EQ(segment.next_token, 't');
  ASSERT_TRUE(driver_.OnResult(AnswerScored(plan, 'x')).ok());
  const std::vector<FinishedRequest> finished = driver_.TakeFinished();
  ASSERT_THAT(finished, SizeIs(1));
  const Generation& generation = finished[0].generation;
  EXPECT_TRUE(generation.status.ok()) << generation.status;
  EXPECT_EQ(generation.finish_reason, FinishReason::kLength);
  EXPECT_EQ(generation.generated, 0);
  EXPECT_THAT(generation.tokens, SizeIs(0));
  ASSERT_THAT(generation.prompt_scores.logprobs, SizeIs(19));
  EXPECT_EQ(generation.prompt_scores.logprobs[18], -19);
  EXPECT_EQ(driver_.TakeStats().tokens, 0);
  // The sequence is released, and nothing else is left to do.
  plan = driver_.TakePlans().at(0);
  EXPECT_THAT(plan.release, SizeIs(1));
  EXPECT_THAT(plan.micro_batches, SizeIs(0));
}

TEST_F(BlockDriverTest, ScoresAPromptAndGoesOn) {
  Start(1);
  driver_.Add(Scored(0, "abc", 2));
  StepPlan plan = driver_.TakePlans().at(0);
  const Segment& segment = plan.micro_batches[0].segments.at(0);
  EXPECT_EQ(segment.num_tokens, 3);
  EXPECT_TRUE(segment.sample);
  EXPECT_EQ(segment.score_begin, 1);
  EXPECT_EQ(segment.score_end, 3);
  EXPECT_EQ(segment.next_token, -1);
  ASSERT_TRUE(driver_.OnResult(AnswerScored(plan, 'd')).ok());
  plan = driver_.TakePlans().at(0);
  EXPECT_EQ(plan.micro_batches[0].segments.at(0).score_begin,
            plan.micro_batches[0].segments.at(0).score_end);
  ASSERT_TRUE(driver_.OnResult(AnswerScored(plan, 'e')).ok());
  const std::vector<FinishedRequest> finished = driver_.TakeFinished();
  ASSERT_THAT(finished, SizeIs(1));
  EXPECT_EQ(finished[0].generation.tokens, (std::vector<int32_t>{'d', 'e'}));
  EXPECT_THAT(finished[0].generation.prompt_scores.logprobs, SizeIs(2));
}

// A result with many tokens comes in parts, like one with many scores.
TEST_F(BlockDriverTest, TakesTokensInParts) {
  Start(1);
  for (int i = 0; i < 3; ++i) driver_.Add(MakeRequest(1, i, "ab", 1));
  driver_.Add(Scored(3, "abc", 1));
  const StepPlan plan = driver_.TakePlans().at(0);
  const StepResult whole = AnswerScored(plan, 'x');
  ASSERT_THAT(whole.tokens, SizeIs(4));
  const auto part = [&](int scores, std::vector<int> tokens, bool more) {
    StepResult part{whole.epoch, whole.block, whole.step, {}};
    if (scores > 0) part.scores = whole.scores;
    for (int i : tokens) part.tokens.push_back(whole.tokens[i]);
    part.more = more;
    return driver_.OnResult(part);
  };
  ASSERT_TRUE(part(1, {0}, true).ok());
  ASSERT_TRUE(part(0, {1, 2}, true).ok());
  EXPECT_THAT(driver_.TakeFinished(), SizeIs(0)) << "until all have come";
  // The token is not the next one, one too many, or too few at the end.
  EXPECT_EQ(part(0, {2}, true).code(), absl::StatusCode::kInternal);
  EXPECT_EQ(part(0, {3, 3}, true).code(), absl::StatusCode::kInternal);
  EXPECT_EQ(part(0, {}, false).code(), absl::StatusCode::kInternal);
  EXPECT_EQ(driver_.blocks_in_flight(), 1);
  ASSERT_TRUE(part(0, {3}, false).ok());
  EXPECT_EQ(driver_.blocks_in_flight(), 0);
  EXPECT_THAT(driver_.TakeFinished(), SizeIs(4));
}

// The parts of a lost step's result are forgotten with it.
TEST_F(BlockDriverTest, TokensInPartsDoNotOutliveTheirEpoch) {
  Start(1);
  for (int i = 0; i < 2; ++i) driver_.Add(MakeRequest(1, i, "ab", 1));
  StepResult first = Answer(driver_.TakePlans().at(0), 'x');
  first.tokens.pop_back();
  first.more = true;
  ASSERT_TRUE(driver_.OnResult(first).ok());
  driver_.StopEpoch();
  Start(2);
  ASSERT_TRUE(driver_.OnResult(Answer(driver_.TakePlans().at(0), 'y')).ok());
  const std::vector<FinishedRequest> finished = driver_.TakeFinished();
  ASSERT_THAT(finished, SizeIs(2));
  for (const FinishedRequest& f : finished) {
    EXPECT_EQ(f.generation.tokens, (std::vector<int32_t>{'y'}));
  }
}

TEST_F(BlockDriverTest, WhatNeedsNoModelEndsAtOnce) {
  driver_.Add(Scored(0, "a", 0));        // nothing predicts its only token
  driver_.Add(Scored(1, "abc", 0, -1));  // only the text is wanted
  const std::vector<FinishedRequest> finished = driver_.TakeFinished();
  ASSERT_THAT(finished, SizeIs(2));
  for (const FinishedRequest& f : finished) {
    EXPECT_TRUE(f.generation.status.ok());
    EXPECT_EQ(f.generation.finish_reason, FinishReason::kLength);
    EXPECT_THAT(f.generation.prompt_scores.logprobs, SizeIs(0));
  }
}

// Scores known when a worker dies are not computed again; those of a lost step
// are.
TEST_F(BlockDriverTest, ReplaysOnlyTheScoresThatAreMissing) {
  Start(1);
  driver_.Add(Scored(0, "abcdefghijklmnopqrst", 0));
  ASSERT_TRUE(
      driver_.OnResult(AnswerScored(driver_.TakePlans().at(0), 'x')).ok());
  // One part of the lost step's result has come.
  StepPlan plan = driver_.TakePlans().at(0);
  StepResult part = AnswerScored(plan, 'x');
  part.scores[0].logprobs.resize(1);
  part.more = true;
  ASSERT_TRUE(driver_.OnResult(part).ok());
  EXPECT_EQ(driver_.blocks_in_flight(), 1);
  driver_.StopEpoch();
  Start(2);
  plan = driver_.TakePlans().at(0);
  EXPECT_EQ(plan.micro_batches[0].segments.at(0).start, 0);
  EXPECT_EQ(plan.micro_batches[0].segments[0].score_begin,
            plan.micro_batches[0].segments[0].score_end);
  ASSERT_TRUE(driver_.OnResult(AnswerScored(plan, 'x')).ok());
  plan = driver_.TakePlans().at(0);
  EXPECT_EQ(plan.micro_batches[0].segments[0].score_begin, 18);
  EXPECT_EQ(plan.micro_batches[0].segments[0].score_end, 20);
  ASSERT_TRUE(driver_.OnResult(AnswerScored(plan, 'x')).ok());
  const std::vector<FinishedRequest> finished = driver_.TakeFinished();
  ASSERT_THAT(finished, SizeIs(1));
  std::vector<float> expected;
  for (int p = 1; p < 20; ++p) expected.push_back(-static_cast<float>(p));
  EXPECT_EQ(finished[0].generation.prompt_scores.logprobs, expected);
}

TEST_F(BlockDriverTest, RefusesScoresThatDoNotFit) {
  const auto refused = [&](const std::function<void(StepResult&)>& change) {
    BlockDriver driver({.tokenizer = &tokenizer_,
                        .vocab_size = FakeTokenizer::kAsciiVocab,
                        .eos_tokens = {FakeTokenizer::kAsciiEos},
                        .clock = &clock_});
    StepScheduler::Options options;
    options.gbs = 4;
    options.max_step_tokens = 16;
    options.kv_pages = 100;
    ASSERT_TRUE(driver.StartEpoch(PlanEpoch(1), options).ok());
    driver.Add(Scored(0, "abcd", 2, 1));
    driver.Add(MakeRequest(1, 1, "ab", 2));
    const StepPlan plan = driver.TakePlans().at(0);
    StepResult result = AnswerScored(plan, 'd');
    result.scores[0].num_top = 1;
    result.scores[0].top.assign(3, {'x', -1});
    StepResult bad = result;
    change(bad);
    const absl::Status status = driver.OnResult(bad);
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
  };
  using R = StepResult;
  refused([](R& r) { r.scores.clear(); });
  refused([](R& r) { r.scores.push_back(r.scores[0]); });
  refused([](R& r) { r.scores[0].sequence = r.tokens[1].sequence; });
  refused([](R& r) { r.scores[0].sequence = SequenceId(99); });
  refused([](R& r) { r.scores[0].begin = 2; });
  refused([](R& r) { r.scores[0].begin = 0; });
  refused([](R& r) {
    r.scores[0].logprobs.pop_back();
    r.scores[0].top.pop_back();
  });
  refused([](R& r) {
    r.scores[0].logprobs.push_back(0);
    r.scores[0].top.push_back({});
  });
  refused([](R& r) { r.scores[0].logprobs = {}, r.scores[0].top = {}; });
  refused([](R& r) { r.scores[0].num_top = 0; });
  refused([](R& r) { r.scores[0].top.pop_back(); });
  refused([](R& r) { r.scores[0].top[1].token = FakeTokenizer::kAsciiVocab; });
  refused([](R& r) { r.scores[0].top[1].token = -2; });
  refused([](R& r) { r.more = true; });  // nothing is left to come
}

TEST_F(BlockDriverTest, ScoresThatAreNoNumbersFailTheRequestOnly) {
  Start(1);
  driver_.Add(Scored(0, "abcd", 2));
  driver_.Add(Scored(1, "abcd", 0));
  const StepPlan plan = driver_.TakePlans().at(0);
  StepResult result = AnswerScored(plan, 'd');
  result.scores[0].logprobs[1] = std::numeric_limits<float>::quiet_NaN();
  result.scores[1].logprobs[1] = -std::numeric_limits<float>::infinity();
  ASSERT_TRUE(driver_.OnResult(result).ok());
  const std::vector<FinishedRequest> finished = driver_.TakeFinished();
  ASSERT_THAT(finished, SizeIs(2));
  EXPECT_EQ(finished[0].generation.status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(finished[0].generation.status.message()),
              HasSubstr("position 2"));
  EXPECT_TRUE(finished[1].generation.status.ok());
  EXPECT_EQ(driver_.live(), 0);
}

TEST_F(BlockDriverTest, CancelsWhileScoresAreUnderWay) {
  Start(1);
  driver_.Add(Scored(0, "abcd", 0));
  const StepPlan plan = driver_.TakePlans().at(0);
  driver_.Cancel(JobId(1));
  EXPECT_THAT(driver_.TakeFinished(), SizeIs(1));
  ASSERT_TRUE(driver_.OnResult(AnswerScored(plan, 'd')).ok());
  EXPECT_THAT(driver_.TakeFinished(), SizeIs(0));
}

// -- From one driver to another.

class MovingTest : public BlockDriverTest {
 protected:
  static bool Any(const SequenceState&) { return true; }

  BlockDriver other_{{.tokenizer = &tokenizer_,
                      .vocab_size = FakeTokenizer::kAsciiVocab,
                      .eos_tokens = {FakeTokenizer::kAsciiEos},
                      .clock = &clock_}};
};

TEST_F(MovingTest, GoesOnWithTheTokensKnown) {
  driver_.Add(MakeRequest(1, 0, "abc", 9));
  driver_.Add(MakeRequest(1, 1, "x", 9));
  Start(1);
  ASSERT_TRUE(driver_.OnResult(Answer(driver_.TakePlans().at(0), 'd')).ok());
  EXPECT_THAT(driver_.Release(9, Any), SizeIs(0));  // an epoch has them
  driver_.StopEpoch();
  StepScheduler::Options options;
  options.gbs = 4;
  options.kv_pages = 100;
  options.page_tokens = 8;
  ASSERT_TRUE(other_.StartEpoch(PlanEpoch(2), options).ok());
  for (SequenceState& sequence : driver_.Release(9, Any)) {
    other_.Adopt(std::move(sequence));
  }
  EXPECT_EQ(driver_.live(), 0);
  EXPECT_EQ(other_.live(), 2);
  const StepPlan plan = other_.TakePlans().at(0);
  EXPECT_EQ(plan.micro_batches[0].tokens,
            (std::vector<int32_t>{'a', 'b', 'c', 'd', 'x', 'd'}));
  // The first driver has counted a replay, and that nothing runs there.
  const JobProgress progress = driver_.TakeProgress().at(JobId(1));
  EXPECT_EQ(progress.running, 0);
  EXPECT_EQ(progress.replays, 2);
  EXPECT_EQ(other_.TakeProgress().at(JobId(1)).running, 2);
}

TEST_F(MovingTest, ReleasesWhatIsWantedInItsOrder) {
  for (int i = 0; i < 5; ++i) {
    driver_.Add(MakeRequest(1, i, std::string(1 + i, 'a'), 9));
  }
  const auto short_ones = [](const SequenceState& sequence) {
    return sequence.request().prompt.size() < 4;
  };
  const auto released = driver_.Release(2, short_ones);
  ASSERT_THAT(released, SizeIs(2));
  EXPECT_EQ(released[0].request().index, 0);
  EXPECT_EQ(released[1].request().index, 1);
  EXPECT_THAT(driver_.Release(9, short_ones), SizeIs(1));
  EXPECT_EQ(driver_.live(), 2);
  driver_.Cancel(JobId(1));
  EXPECT_THAT(driver_.Release(9, Any), SizeIs(0));
  EXPECT_THAT(driver_.TakeFinished(), SizeIs(2));
}

TEST_F(MovingTest, ReleasesTheLastOfThoseThatWait) {
  Start(1);
  for (int i = 0; i < 9; ++i) driver_.Add(MakeRequest(1, i, "abc", 9));
  const StepPlan plan = driver_.TakePlans().at(0);  // admits four
  ASSERT_THAT(plan.admit, SizeIs(4));
  EXPECT_EQ(driver_.waiting(), 5);
  EXPECT_THAT(driver_.ReleaseWaiting(0), SizeIs(0));
  EXPECT_THAT(driver_.ReleaseWaiting(-3), SizeIs(0));
  const auto released = driver_.ReleaseWaiting(2);
  ASSERT_THAT(released, SizeIs(2));
  EXPECT_EQ(released[0].request().index, 7);
  EXPECT_EQ(released[1].request().index, 8);
  EXPECT_THAT(driver_.ReleaseWaiting(99), SizeIs(3));
  EXPECT_EQ(driver_.waiting(), 0);
  ASSERT_TRUE(driver_.OnResult(Answer(plan, 'd')).ok());
}

TEST_F(MovingTest, KeepsWhatDoesNotFitForOthers) {
  driver_.SetKeepsUnfit(true);
  Start(1, 1, /*kv_pages=*/2);
  driver_.Add(MakeRequest(1, 0, "abc", 5));
  driver_.Add(MakeRequest(1, 1, std::string(30, 'a'), 5));
  EXPECT_THAT(driver_.TakeFinished(), SizeIs(0));
  EXPECT_EQ(driver_.live(), 2);
  const auto unfit = driver_.TakeUnfit();
  ASSERT_THAT(unfit, SizeIs(1));
  EXPECT_EQ(unfit[0].request().index, 1);
  EXPECT_FALSE(driver_.Fits(unfit[0]));
  // Those that nobody took wait for the next epoch with the others.
  driver_.Add(MakeRequest(1, 2, std::string(30, 'a'), 5));
  driver_.StopEpoch();
  Start(2);
  EXPECT_THAT(driver_.TakePlans().at(0).admit, SizeIs(2));
}

TEST_F(BlockDriverTest, RefusesOptionsThatAreNone) {
  StepScheduler::Options options;  // no pages
  EXPECT_FALSE(driver_.StartEpoch(PlanEpoch(1), options).ok());
  EXPECT_FALSE(driver_.epoch().has_value());
}

}  // namespace
}  // namespace sluice
