#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "runtime/sample/distribution.h"
#include "runtime/sample/sampler.h"
#include "tests/unit/allocation/allocation_count.h"

namespace sluice {
namespace {

TEST(AllocationTest, NoneInSteadyState) {
  std::mt19937 random(1);
  std::vector<float> given(32000);
  for (float& l : given) l = static_cast<float>(random() % 100000) / 10000;
  std::vector<float> logits(given.size());
  SamplerScratch scratch;
  for (const SamplingParams& params : std::vector<SamplingParams>{
           {},
           {.logprobs = 0},
           {.temperature = 1},
           {.temperature = 1, .top_k = 50, .top_p = 0.9f},
           {.temperature = 1, .top_p = 0.9f, .min_p = 0.01f},
           {.temperature = 1, .repetition_penalty = 2}}) {
    Sampler sampler(params, 3);
    sampler.Observe(0, std::vector<int32_t>{1, 2, 3});
    int64_t before = 0;
    for (int round = 0; round < 3; ++round) {
      before = AllocationCount();
      logits = given;
      EXPECT_GE(sampler.Sample(logits, 10, scratch).token, 0);
    }
    EXPECT_EQ(AllocationCount(), before);
  }
}

TEST(AllocationTest, ScoringNeedsNone) {
  std::mt19937 random(1);
  std::vector<float> logits(32000);
  for (float& l : logits) l = static_cast<float>(random() % 100000) / 10000;
  SamplerScratch scratch;
  TokenLogprob top[20];
  int64_t before = 0;
  for (int round = 0; round < 3; ++round) {
    before = AllocationCount();
    EXPECT_LT(ScoreToken(logits, 7, top, scratch), 0);
  }
  EXPECT_EQ(AllocationCount(), before);
}

}  // namespace
}  // namespace sluice
