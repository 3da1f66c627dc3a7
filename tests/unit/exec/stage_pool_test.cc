// Vectors that the last stage pools of hidden states: what each pooling makes
// of them, and that their bits do not depend on how prompts are cut, on their
// batch, or on where the stage's layers, weights and ranks are.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "runtime/exec/pool.h"
#include "tests/parity/random_source.h"
#include "tests/parity/stage_chain.h"
#include "tests/support/temp_dir.h"
#include "tests/unit/exec/placement_testing.h"

namespace sluice {
namespace {

constexpr uint64_t kDeviceBytes = uint64_t{64} << 20;
constexpr Pooling kPoolings[] = {Pooling::kLastToken,    Pooling::kFirstToken,
                                 Pooling::kMean,         Pooling::kMeanSqrtLen,
                                 Pooling::kWeightedMean, Pooling::kMax};

// Its head has one section, or several.
DecoderSpec Spec(bool large) {
  return LlamaSpec(3, 64, 4, 2, 100, large ? 9001 : 301);
}

struct PooledPrompt {
  std::vector<int32_t> tokens;
  Pooling pooling;
};

std::vector<int32_t> Prompt(int n, int seed) {
  std::vector<int32_t> tokens;
  for (int i = 0; i < n; ++i) tokens.push_back((31 * seed + 17 * i + 5) % 301);
  return tokens;
}

// Prompts of several lengths with each pooling.
std::vector<PooledPrompt> AllPrompts() {
  std::vector<PooledPrompt> prompts;
  for (const Pooling pooling : kPoolings) {
    for (const int n : {1, 7, 40}) prompts.push_back({Prompt(n, n), pooling});
  }
  return prompts;
}

// Pools all prompts at once, `chunk` tokens of each in a step; every third step
// leaves some out. Beside them a sequence is sampled and scored in each step.
absl::StatusOr<std::vector<std::vector<float>>> PoolAll(
    const DecoderSpec& spec, const StageChain::Options& options,
    const std::vector<PooledPrompt>& prompts, int chunk) {
  auto chain = StageChain::Create(spec, RandomSource(3), options);
  if (!chain.ok()) return chain.status();
  std::vector<std::vector<float>> vectors(prompts.size());
  std::vector<int32_t> done(prompts.size());
  std::optional<SequenceId> scored;  // in the step before
  for (int64_t step = 0;; ++step) {
    StepPlan plan;
    plan.step = step;
    plan.micro_batches.resize(2);
    std::vector<int64_t> expected;
    for (size_t k = 0; k < 2; ++k) {
      MicroBatch& batch = plan.micro_batches[k];
      for (size_t i = k; i < prompts.size(); i += 2) {
        const auto size = static_cast<int32_t>(prompts[i].tokens.size());
        if (done[i] == size || (step % 3 == 2 && i % 4 == 0)) continue;
        const SequenceId id(static_cast<int64_t>(i));
        if (done[i] == 0) {
          plan.admit.push_back({id, size, size, {}, prompts[i].pooling});
        }
        const int32_t n = std::min(chunk, size - done[i]);
        const bool ends = done[i] + n == size;
        batch.segments.push_back({id, done[i], n, ends});
        const auto from = prompts[i].tokens.begin() + done[i];
        batch.tokens.insert(batch.tokens.end(), from, from + n);
        done[i] += n;
        if (ends) expected.push_back(id.value());
      }
    }
    std::erase_if(plan.micro_batches,
                  [](const MicroBatch& b) { return b.segments.empty(); });
    if (plan.micro_batches.empty()) {
      if (step % 3 == 2) continue;
      break;
    }
    // The first of its tokens are scored, and the last one samples.
    const SequenceId other(1000 + step);
    if (scored) plan.release.push_back(*scored);
    scored = other;
    plan.admit.push_back({other, 4, 5, {}});
    plan.micro_batches[0].segments.push_back({other, 0, 4, true, 1, 4});
    for (const int token : {1, 2, 3, 4}) {
      plan.micro_batches[0].tokens.push_back(token);
    }
    StepResult result;
    if (auto status = (*chain)->RunStep(plan, &result); !status.ok()) {
      return status;
    }
    EXPECT_EQ(result.tokens.size(), 1u);
    EXPECT_EQ(result.scores.size(), 1u);
    EXPECT_EQ(result.pooled.size(), expected.size());
    for (size_t i = 0; i < result.pooled.size(); ++i) {
      EXPECT_EQ(result.pooled[i].sequence.value(), expected[i]);
      vectors[result.pooled[i].sequence.value()] = result.pooled[i].values;
    }
  }
  return vectors;
}

StageChain::Options Options() {
  StageChain::Options options;
  options.policy = With("");
  options.policy.max_step_tokens = 512;
  options.observe_logits = false;
  return options;
}

class StagePoolTest : public testing::TestWithParam<bool> {
 protected:
  const DecoderSpec spec_ = Spec(GetParam());
};

// The last hidden states of all beginnings of a prompt are its hidden states:
// of these, the formulas of common/pooling.h make each pooling's vector.
TEST_P(StagePoolTest, PoolingsAreTheirFormulas) {
  constexpr int kTokens = 9;
  std::vector<PooledPrompt> prompts;
  for (int n = 1; n <= kTokens; ++n) {
    std::vector<int32_t> tokens = Prompt(kTokens, 4);
    tokens.resize(n);
    prompts.push_back({tokens, Pooling::kLastToken});
  }
  for (const Pooling pooling : kPoolings) {
    prompts.push_back({Prompt(kTokens, 4), pooling});
  }
  auto vectors = PoolAll(spec_, Options(), prompts, 4);
  ASSERT_TRUE(vectors.ok()) << vectors.status();
  const std::vector<std::vector<float>> hidden(vectors->begin(),
                                               vectors->begin() + kTokens);
  const auto pooled = [&](int pooling) {
    return (*vectors)[kTokens + pooling];
  };
  double square = 0;
  for (int i = 0; i < spec_.hidden_size; ++i) {
    double sum = 0, weighted = 0;
    float max = hidden[0][i];
    for (int p = 0; p < kTokens; ++p) {
      sum += hidden[p][i];
      weighted += (p + 1.0) * hidden[p][i];
      max = std::max(max, hidden[p][i]);
    }
    square += static_cast<double>(hidden[0][i]) * hidden[0][i];
    EXPECT_EQ(pooled(0)[i], hidden[kTokens - 1][i]);
    EXPECT_EQ(pooled(1)[i], hidden[0][i]);
    EXPECT_EQ(pooled(2)[i], static_cast<float>(sum / kTokens));
    EXPECT_EQ(pooled(3)[i], static_cast<float>(sum / std::sqrt(kTokens)));
    EXPECT_EQ(pooled(4)[i], static_cast<float>(weighted / 45));
    EXPECT_EQ(pooled(5)[i], max);
  }
  // They are behind the final norm, whose weights are about one here.
  EXPECT_NEAR(std::sqrt(square / spec_.hidden_size), 1, 0.3);
}

TEST_P(StagePoolTest, SameBitsHoweverPromptsAreCutAndStagesLie) {
  const auto prompts = AllPrompts();
  auto expected = PoolAll(spec_, Options(), prompts, 100);
  ASSERT_TRUE(expected.ok()) << expected.status();
  for (const auto& vector : *expected) {
    ASSERT_EQ(vector.size(), static_cast<size_t>(spec_.hidden_size));
  }
  const TempDir dir = TempDir::OnDisk();
  struct Run {
    const char* policy = "";
    int chunk = 100;
    std::vector<int> cuts;
    int ranks = 1;
    uint64_t device_bytes = 0;
  };
  for (const Run& run : std::vector<Run>{
           {"", 1},
           {"", 13, {1}},
           {"", 5, {1, 2}},
           {"", 13, {}, 2},
           {"", 3, {2}, 4},
           {"w=0/0/100 c=0/0/100", 13},
           {"w=0/50/50 schedule=row", 13, {1}, 2},
           {"packing=off num-microbatches=2", 6},
           {"w=100/0/0 c=100/0/0 h=100/0/0", 13, {}, 1, kDeviceBytes},
           {"w=0/0/100 c=0/100/0 h=0/100/0", 13, {1}, 2, kDeviceBytes},
       }) {
    SCOPED_TRACE(testing::Message() << run.policy << " chunk " << run.chunk
                                    << " ranks " << run.ranks);
    StageChain::Options options = Options();
    options.policy = With(run.policy);
    options.policy.max_step_tokens = 512;
    options.cuts = run.cuts;
    options.ranks = run.ranks;
    options.disk_dir = dir.path();
    options.device_bytes = run.device_bytes;
    auto vectors = PoolAll(spec_, options, prompts, run.chunk);
    ASSERT_TRUE(vectors.ok()) << vectors.status();
    EXPECT_TRUE(*vectors == *expected);
  }
}

INSTANTIATE_TEST_SUITE_P(Heads, StagePoolTest, testing::Bool(),
                         [](const auto& info) {
                           return info.param ? "InSections" : "Whole";
                         });

TEST(StagePoolFaultTest, APooledSequenceHasNoScores) {
  StepPlan plan;
  plan.admit = {{SequenceId(1), 4, 4, {}, Pooling::kMean}};
  plan.micro_batches = {{{{SequenceId(1), 0, 4, true, 1, 4}}, {1, 2, 3, 4}}};
  auto chain = StageChain::Create(Spec(false), RandomSource(3), Options());
  ASSERT_TRUE(chain.ok()) << chain.status();
  StepResult result;
  EXPECT_EQ((*chain)->RunStep(plan, &result).ToString(),
            "INVALID_ARGUMENT: sequence 1: it is pooled, and has no scores");
}

// A worker that begins anew has pools without rows of an earlier epoch.
TEST(StagePoolFaultTest, ResetForgetsWhatWasPooled) {
  StepPlan begun, whole;
  begun.admit = whole.admit = {{SequenceId(1), 4, 4, {}, Pooling::kMean}};
  begun.micro_batches = {{{{SequenceId(1), 0, 2, false}}, {7, 8}}};
  whole.micro_batches = {{{{SequenceId(1), 0, 4, true}}, {7, 8, 9, 10}}};
  auto chain = StageChain::Create(Spec(false), RandomSource(3), Options());
  ASSERT_TRUE(chain.ok()) << chain.status();
  StepResult first, again;
  ASSERT_TRUE((*chain)->RunStep(whole, &first).ok());
  ASSERT_EQ(first.pooled.size(), 1u);
  (*chain)->Reset();
  ASSERT_TRUE((*chain)->RunStep(begun, &again).ok());
  EXPECT_TRUE(again.pooled.empty());
  (*chain)->Reset();
  ASSERT_TRUE((*chain)->RunStep(whole, &again).ok());
  ASSERT_EQ(again.pooled.size(), 1u);
  EXPECT_EQ(again.pooled[0].values, first.pooled[0].values);
}

TEST(PoolTest, ANaNStaysOne) {
  for (const Pooling pooling : kPoolings) {
    Pool pool(pooling);
    const Segment segment{SequenceId(1), 0, 3, true};
    std::vector<int32_t> wanted;
    pool.WantedRows(segment, &wanted);
    std::vector<float> rows;
    for (const int32_t row : wanted) {
      // The first element is bad in the first row, the second one in the last.
      rows.push_back(row == 0 ? std::nanf("") : 1.0f);
      rows.push_back(row == 2 ? std::nanf("") : 1.0f);
    }
    pool.Add(rows, 2);
    const std::vector<float> values = pool.Take();
    EXPECT_EQ(std::isnan(values[0]), pooling != Pooling::kLastToken);
    EXPECT_EQ(std::isnan(values[1]), pooling != Pooling::kFirstToken);
  }
}

}  // namespace
}  // namespace sluice
