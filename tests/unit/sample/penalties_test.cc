#include "runtime/sample/penalties.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sluice {
namespace {

using ::testing::ElementsAre;
using ::testing::UnorderedElementsAre;

const TokenCounts kCounts = {{0, {.prompt = 2}},
                             {1, {.generated = 3}},
                             {2, {.prompt = 1, .generated = 1}}};

std::vector<float> Apply(const SamplingParams& params) {
  std::vector<float> logits = {4, 4, -4, -4, 0};
  std::vector<std::pair<int32_t, float>> changed;
  ApplyPenalties(params, kCounts, logits, changed);
  return logits;
}

TEST(PenaltiesTest, DefaultsChangeNothing) {
  EXPECT_FALSE(PenaltiesNeedCounts({}));
  EXPECT_THAT(Apply({}), ElementsAre(4, 4, -4, -4, 0));
}

TEST(PenaltiesTest, RepetitionCountsPromptAndOutputOnce) {
  EXPECT_TRUE(PenaltiesNeedCounts({.repetition_penalty = 2}));
  EXPECT_THAT(Apply({.repetition_penalty = 2}), ElementsAre(2, 2, -8, -4, 0));
  EXPECT_THAT(Apply({.repetition_penalty = 0.5}), ElementsAre(8, 8, -2, -4, 0));
}

TEST(PenaltiesTest, PresenceAndFrequencyCountOutputOnly) {
  EXPECT_TRUE(PenaltiesNeedCounts({.presence_penalty = 0.5}));
  EXPECT_TRUE(PenaltiesNeedCounts({.frequency_penalty = -0.5}));
  EXPECT_THAT(Apply({.presence_penalty = 0.5}),
              ElementsAre(4, 3.5, -4.5, -4, 0));
  EXPECT_THAT(Apply({.frequency_penalty = -0.5}),
              ElementsAre(4, 5.5, -3.5, -4, 0));
}

TEST(PenaltiesTest, RepetitionComesFirstThenTheOthersThenBias) {
  EXPECT_THAT(Apply({.repetition_penalty = 2,
                     .presence_penalty = 1,
                     .frequency_penalty = 1,
                     .logit_bias = {{0, 10}, {4, -1}}}),
              ElementsAre(12, -2, -10, -4, -1));
}

TEST(PenaltiesTest, BiasOfOneTokenTwiceAddsUp) {
  EXPECT_THAT(Apply({.logit_bias = {{3, 1}, {3, 2}}}),
              ElementsAre(4, 4, -4, -1, 0));
}

TEST(PenaltiesTest, IgnoresTokensOutsideTheVocabulary) {
  const TokenCounts counts = {{-1, {1, 1}}, {2, {1, 1}}, {INT32_MAX, {1, 1}}};
  std::vector<float> logits = {1, 2};
  std::vector<std::pair<int32_t, float>> changed;
  ApplyPenalties({.repetition_penalty = 2,
                  .logit_bias = {{2, 1}, {-1, 1}, {INT32_MIN, 1}}},
                 counts, logits, changed);
  EXPECT_THAT(logits, ElementsAre(1, 2));
  EXPECT_TRUE(changed.empty());
}

TEST(PenaltiesTest, RemembersTheModelsLogits) {
  std::vector<float> logits = {4, 4, -4, -4, 0};
  std::vector<std::pair<int32_t, float>> changed;
  ApplyPenalties({.repetition_penalty = 2, .logit_bias = {{1, 1}, {4, 1}}},
                 kCounts, logits, changed);
  EXPECT_THAT(changed,
              UnorderedElementsAre(std::pair(0, 4.0f), std::pair(1, 4.0f),
                                   std::pair(2, -4.0f), std::pair(1, 2.0f),
                                   std::pair(4, 0.0f)));
  EXPECT_EQ(changed[3], std::pair(1, 2.0f));
}

}  // namespace
}  // namespace sluice
