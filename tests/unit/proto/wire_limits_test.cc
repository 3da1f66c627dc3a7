// Messages of the maximum sizes arrive, and their sizes are those that
// wire_limits.h calculates.

#include "proto/wire_limits.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "common/sampling_params.h"
#include "common/step_plan.h"
#include "proto/convert.h"
#include "sluice/v1/pipeline.pb.h"

namespace sluice {
namespace {

constexpr int32_t kLargest = std::numeric_limits<int32_t>::max();
constexpr int64_t kLargestId = std::numeric_limits<int64_t>::max();

SequenceAdmission LargestAdmission(size_t logit_biases) {
  SequenceAdmission admission;
  admission.sequence = SequenceId(kLargestId);
  admission.prompt_tokens = admission.max_positions = kLargest;
  SamplingParams& sampling = admission.sampling;
  sampling.temperature = sampling.top_p = sampling.min_p = 0.123f;
  sampling.repetition_penalty = sampling.presence_penalty = 1.1f;
  sampling.frequency_penalty = -1.1f;
  sampling.top_k = -1;
  sampling.logprobs = -1;
  sampling.seed = std::numeric_limits<uint64_t>::max();
  admission.pooling = kLastPooling;
  admission.prefix = {SequenceId(-kLargestId), kLargest};
  for (size_t i = 0; i < logit_biases; ++i) {
    sampling.logit_bias.emplace_back(kLargest - static_cast<int32_t>(i), -0.1f);
  }
  return admission;
}

Segment LargestSegment(int32_t tokens) {
  return {SequenceId(kLargestId), kLargest - tokens, tokens,  true,
          kLargest - tokens + 1,  kLargest,          kLargest};
}

int64_t Bytes(const StepPlan& plan) {
  v1::StepPlan wire;
  ToProto(plan, &wire);
  return static_cast<int64_t>(wire.ByteSizeLong());
}

// The bytes that one more `change` adds to a plan.
template <typename Change>
int64_t Added(const Change& change) {
  StepPlan plan;
  plan.epoch = PlanEpoch(kLargestId);
  plan.micro_batches.emplace_back();
  for (int i = 0; i < 1000; ++i) change(plan);
  const int64_t before = Bytes(plan);
  for (int i = 0; i < 1000; ++i) change(plan);
  return (Bytes(plan) - before + 999) / 1000;
}

TEST(WireLimitsTest, PartsOfAPlanTakeNoMoreThanIsReckoned) {
  EXPECT_LE(Added([](StepPlan& plan) {
              plan.release.push_back(SequenceId(kLargestId));
            }),
            kReleaseBytes);
  EXPECT_LE(Added([](StepPlan& plan) {
              plan.keep.push_back({SequenceId(-kLargestId),
                                   {SequenceId(-kLargestId), kLargest}});
            }),
            kKeptPrefixBytes);
  EXPECT_LE(Added([](StepPlan& plan) {
              plan.micro_batches[0].segments.push_back(LargestSegment(1));
            }),
            kSegmentBytes);
  EXPECT_LE(Added([](StepPlan& plan) {
              plan.micro_batches[0].tokens.push_back(kLargest);
            }),
            kPlanTokenBytes);
  EXPECT_LE(
      Added([](StepPlan& plan) { plan.admit.push_back(LargestAdmission(0)); }),
      kAdmissionBytes);
  EXPECT_LE(Added([](StepPlan& plan) {
              plan.admit.push_back(LargestAdmission(kMaxLogitBiases));
            }),
            kAdmissionBytes +
                static_cast<int64_t>(kMaxLogitBiases) * kLogitBiasBytes);
}

// 20 alternatives for thousands of rows, all numbers as long as can be.
TEST(WireLimitsTest, ResultsComeInPartsThatFit) {
  StepResult whole;
  whole.epoch = PlanEpoch(kLargestId);
  whole.block = BlockId(kLargest);
  whole.step = kLargestId;
  const auto top = [](int i) {
    return TokenLogprob{i % 3 == 0 ? -1 : kLargest - i, -0.1f * (i % 100)};
  };
  for (int s = 0; s < 3000; ++s) {
    TokenScores& scores = whole.scores.emplace_back();
    scores.sequence = SequenceId(kLargestId - s);
    // One segment has many rows, many have one; with and without alternatives.
    const int rows = s == 7 ? 4096 : 1;
    scores.begin = kLargest - rows;
    scores.num_top = s % 3 == 0 ? 0 : kMaxTopLogprobs;
    scores.logprobs.assign(rows, -1.5f);
    for (int i = 0; i < rows * scores.num_top; ++i) {
      scores.top.push_back(top(i));
    }
  }
  for (int s = 0; s < kMaxGbs; ++s) {
    SampledToken& token = whole.tokens.emplace_back();
    token.sequence = SequenceId(kLargestId - s);
    token.token = s % 5 == 0 ? -1 : kLargest - s;
    token.logprob = -0.7f;
    for (int i = 0; i < kMaxTopLogprobs; ++i) token.top.push_back(top(i + s));
  }
  const std::vector<v1::StepResult> parts = ToProtoParts(whole);
  ASSERT_GT(parts.size(), 2u);
  StepResult joined;
  for (const v1::StepResult& part : parts) {
    EXPECT_LE(static_cast<int64_t>(part.ByteSizeLong()),
              kMaxRequestBytes - 1024);
    auto read = FromProto(part);
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(read->more, &part != &parts.back());
    // Scores come first.
    EXPECT_TRUE(read->scores.empty() || joined.tokens.empty());
    for (TokenScores& scores : read->scores) {
      if (joined.scores.empty() ||
          joined.scores.back().sequence != scores.sequence) {
        joined.scores.push_back(std::move(scores));
        continue;
      }
      TokenScores& begun = joined.scores.back();
      begun.logprobs.insert(begun.logprobs.end(), scores.logprobs.begin(),
                            scores.logprobs.end());
      begun.top.insert(begun.top.end(), scores.top.begin(), scores.top.end());
    }
    std::move(read->tokens.begin(), read->tokens.end(),
              std::back_inserter(joined.tokens));
  }
  ASSERT_EQ(joined.scores.size(), whole.scores.size());
  for (size_t i = 0; i < whole.scores.size(); ++i) {
    EXPECT_EQ(joined.scores[i].begin, whole.scores[i].begin);
    EXPECT_EQ(joined.scores[i].logprobs, whole.scores[i].logprobs);
    ASSERT_EQ(joined.scores[i].top.size(), whole.scores[i].top.size());
    EXPECT_TRUE(std::equal(
        joined.scores[i].top.begin(), joined.scores[i].top.end(),
        whole.scores[i].top.begin(), [](const auto& a, const auto& b) {
          return a.token == b.token && a.logprob == b.logprob;
        }));
  }
  ASSERT_EQ(joined.tokens.size(), whole.tokens.size());
  for (size_t i = 0; i < whole.tokens.size(); ++i) {
    EXPECT_EQ(joined.tokens[i].sequence, whole.tokens[i].sequence);
    EXPECT_EQ(joined.tokens[i].token, whole.tokens[i].token);
    EXPECT_EQ(joined.tokens[i].top.size(), whole.tokens[i].top.size());
  }
}

}  // namespace
}  // namespace sluice
