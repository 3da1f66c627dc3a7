#include "runtime/sample/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <set>
#include <vector>

#include "runtime/sample/distribution.h"
#include "runtime/sample/philox.h"

namespace sluice {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNoNumber = std::numeric_limits<float>::quiet_NaN();

SampledToken SampleOnce(const SamplingParams& params, std::vector<float> logits,
                        int32_t position = 0) {
  SamplerScratch scratch;
  return Sampler(params, 0).Sample(logits, position, scratch);
}

TEST(SamplerTest, GreedyTakesTheLargestAndOfEqualsTheFirst) {
  EXPECT_EQ(SampleOnce({}, {1, 5, 2, 5}).token, 1);
  EXPECT_EQ(SampleOnce({.temperature = -1}, {1, 5, 2, 5}).token, 1);
  EXPECT_EQ(SampleOnce({.temperature = kNoNumber}, {1, 5, 2, 5}).token, 1);
}

TEST(SamplerTest, NoTokenFromWhatIsNotNumbers) {
  for (float temperature : {0.0f, 1.0f}) {
    for (int32_t logprobs : {-1, 0, 2}) {
      const SamplingParams params = {.temperature = temperature,
                                     .logprobs = logprobs};
      for (const std::vector<float>& logits :
           std::vector<std::vector<float>>{{1, kNoNumber, 2},
                                           {-kInfinity, -kInfinity},
                                           {},
                                           {kInfinity, 1}}) {
        const SampledToken result = SampleOnce(params, logits);
        EXPECT_EQ(result.token, -1);
        EXPECT_THAT(result.top, IsEmpty());
      }
    }
  }
}

TEST(SamplerTest, NoTokenWhenPenaltiesOverflow) {
  const SampledToken result =
      SampleOnce({.logit_bias = {{1, 3e38f}}, .logprobs = 1}, {0, 2e38f});
  EXPECT_EQ(result.token, -1);
  EXPECT_THAT(result.top, IsEmpty());
}

// Their biases change neither the log-probabilities nor whom they compare.
TEST(SamplerTest, ToldTokensAreTheTopOnes) {
  const std::vector<float> logits = {0, 8, 3, -9};
  const SampledToken likeliest = SampleOnce({.logprobs = 4}, logits);
  const SampledToken result = SampleOnce(
      {.logit_bias = {{3, kToldTokenBias}, {0, kToldTokenBias}, {1, 2}},
       .logprobs = 2},
      logits);
  EXPECT_EQ(result.token, 0);
  ASSERT_THAT(result.top, SizeIs(2));
  EXPECT_EQ(result.top[0].token, 3);
  EXPECT_EQ(result.top[1].token, 0);
  EXPECT_EQ(result.top[0].logprob, likeliest.top[3].logprob);
  EXPECT_EQ(result.top[1].logprob, likeliest.top[2].logprob);
  EXPECT_THAT(SampleOnce({.logit_bias = {{3, kToldTokenBias}}}, logits).top,
              IsEmpty());
}

TEST(SamplerTest, SeedAndPositionDecide) {
  std::vector<float> logits(1000);
  for (int i = 0; i < 1000; ++i) logits[i] = static_cast<float>(i % 7);
  std::set<int32_t> tokens;
  for (uint64_t seed : {1, 2}) {
    for (int32_t position : {0, 1, 2, 3, 4, 5, 6, 7}) {
      const SamplingParams params = {.temperature = 1, .seed = seed};
      const int32_t token = SampleOnce(params, logits, position).token;
      EXPECT_EQ(token, SampleOnce(params, logits, position).token);
      tokens.insert(token);
    }
  }
  EXPECT_GT(tokens.size(), 12u);
}

TEST(SamplerTest, ScratchCarriesNothingOver) {
  std::mt19937 random(3);
  SamplerScratch shared;
  for (int round = 0; round < 200; ++round) {
    std::vector<float> logits(1 + random() % 2000);
    for (float& l : logits) l = static_cast<float>(random() % 10000) / 1000;
    SamplingParams params = {.temperature = 1, .seed = random()};
    if (random() % 2) params.top_k = 1 + random() % 50;
    if (random() % 2) params.top_p = 0.9f;
    if (random() % 2) params.min_p = 0.1f;
    if (random() % 2) params.logit_bias = {{0, 3}};
    if (random() % 2) params.logprobs = 3;
    std::vector<float> copy = logits;
    const Sampler sampler(params, 0);
    const SampledToken a = sampler.Sample(copy, round, shared);
    const SampledToken b = SampleOnce(params, logits, round);
    EXPECT_EQ(a.token, b.token);
    EXPECT_EQ(a.logprob, b.logprob);
    EXPECT_EQ(a.top.size(), b.top.size());
  }
}

TEST(SamplerTest, ObserveTellsPromptFromOutput) {
  Sampler sampler({.presence_penalty = 2}, 3);
  sampler.Observe(0, std::vector<int32_t>{0, 1});
  sampler.Observe(2, std::vector<int32_t>{2, 3});  // 3 is the first generated
  SamplerScratch scratch;
  std::vector<float> logits = {0, 0, 0, 1, -3};
  EXPECT_EQ(sampler.Sample(logits, 4, scratch).token, 0);
  logits = {0, 0, 0, 3, -3};
  EXPECT_EQ(sampler.Sample(logits, 4, scratch).token, 3);
}

TEST(SamplerTest, RepetitionPenaltySeesThePrompt) {
  Sampler sampler({.repetition_penalty = 3}, 2);
  sampler.Observe(0, std::vector<int32_t>{1, 1});
  SamplerScratch scratch;
  std::vector<float> logits = {1.5, 4, 1};
  EXPECT_EQ(sampler.Sample(logits, 2, scratch).token, 0);
}

TEST(SamplerTest, LogprobsAreTheModels) {
  const std::vector<float> logits = {1, 2, 3, -kInfinity};
  const double sum = std::log(std::exp(1.0) + std::exp(2.0) + std::exp(3.0));
  // Neither temperature, truncation nor bias show in them.
  const SampledToken result = SampleOnce(
      {.temperature = 0.1f, .top_k = 1, .logit_bias = {{0, 10}}, .logprobs = 2},
      logits);
  EXPECT_EQ(result.token, 0);
  EXPECT_NEAR(result.logprob, 1 - sum, 1e-6);
  ASSERT_THAT(result.top, SizeIs(2));
  EXPECT_EQ(result.top[0].token, 2);
  EXPECT_NEAR(result.top[0].logprob, 3 - sum, 1e-6);
  EXPECT_EQ(result.top[1].token, 1);
  EXPECT_NEAR(result.top[1].logprob, 2 - sum, 1e-6);
}

TEST(SamplerTest, RequestsWhatNeedsNothingElse) {
  for (const SamplingParams& params :
       std::vector<SamplingParams>{{.repetition_penalty = 1.1f},
                                   {.presence_penalty = 1},
                                   {.frequency_penalty = -1},
                                   {.logit_bias = {{1, 2}}},
                                   {.logprobs = 1}}) {
    EXPECT_FALSE(Sampler(params, 0).Request(3).has_value());
  }
  EXPECT_FALSE(Sampler({.logprobs = 1}, 0).ScoreRequest(2).has_value());
  // Scores are the model's.
  EXPECT_TRUE(
      Sampler({.repetition_penalty = 2}, 0).ScoreRequest(2).has_value());
  const auto greedy = Sampler({.top_k = 3, .seed = 5}, 0).Request(3);
  ASSERT_TRUE(greedy.has_value());
  EXPECT_EQ(greedy->temperature, 0);
  EXPECT_EQ(greedy->target, -1);
  EXPECT_EQ(greedy->logprob, 0);
  const Sampler sampler({.temperature = 0.5f,
                         .top_k = 3,
                         .top_p = 0.75f,
                         .min_p = 0.25f,
                         .seed = 5,
                         .logprobs = 0},
                        0);
  const auto drawn = sampler.Request(3);
  ASSERT_TRUE(drawn.has_value());
  EXPECT_EQ(drawn->temperature, 0.5f);
  EXPECT_EQ(drawn->top_k, 3);
  EXPECT_EQ(drawn->top_p, 0.75f);
  EXPECT_EQ(drawn->min_p, 0.25f);
  EXPECT_EQ(drawn->logprob, 1);
  EXPECT_EQ(drawn->uniform, UniformAt(5, 3));
  EXPECT_NE(drawn->uniform, sampler.Request(4)->uniform);
}

TEST(SamplerTest, AcceptsWhatWasSampled) {
  const TokenSample nothing{-1, kNoNumber};
  EXPECT_EQ(Sampler({.logprobs = 0}, 0).Accept(nothing).token, -1);
  EXPECT_EQ(Sampler({.logprobs = 0}, 0).Accept(nothing).logprob, 0);
  const SampledToken token = Sampler({.logprobs = 0}, 0).Accept({7, -2.5f});
  EXPECT_EQ(token.token, 7);
  EXPECT_EQ(token.logprob, -2.5f);
  EXPECT_THAT(token.top, IsEmpty());
}

TEST(SamplerTest, ScoresAreAnsweredAsByScoreToken) {
  SamplerScratch scratch;
  const std::vector<float> logits = {1, 2, 3, -kInfinity};
  const Sampler sampler({}, 0);
  for (const int32_t target : {0, 2, 3}) {
    const TokenSample sample =
        SampleToken(*sampler.ScoreRequest(target), logits, scratch);
    EXPECT_EQ(sample.token, target);
    EXPECT_EQ(sample.logprob, ScoreToken(logits, target, {}, scratch));
  }
  const TokenSample nothing = SampleToken(
      *sampler.ScoreRequest(1), std::vector<float>{1, kNoNumber}, scratch);
  EXPECT_EQ(nothing.token, -1);
  EXPECT_TRUE(std::isnan(nothing.logprob));
}

TEST(SamplerTest, LogprobsOnlyWhenAskedFor) {
  EXPECT_EQ(SampleOnce({}, {1, 2}).logprob, 0);
  EXPECT_LT(SampleOnce({.logprobs = 0}, {1, 2}).logprob, 0);
  EXPECT_THAT(SampleOnce({.logprobs = 0}, {1, 2}).top, IsEmpty());
  EXPECT_THAT(SampleOnce({.logprobs = 20}, {1, 2}).top, SizeIs(2));
}

}  // namespace
}  // namespace sluice
