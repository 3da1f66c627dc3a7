// Rows that are sampled and scored in one step, each in its own way: what a
// device with memory of its own answers there, and what the host does of logits
// that are brought, are the bits that a CPU gives.

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/sample/sampler.h"
#include "tests/parity/random_source.h"
#include "tests/parity/stage_chain.h"
#include "tests/unit/exec/sampling_kinds.h"

namespace sluice {
namespace {

constexpr uint64_t kDeviceBytes = uint64_t{64} << 20;

// Its head has one section, or several.
DecoderSpec Spec(bool large) {
  return LlamaSpec(2, 64, 4, 2, 100, large ? 9001 : 301);
}

StageChain::Options Options(bool observe) {
  StageChain::Options options;
  options.policy.max_step_tokens = 256;
  options.policy.num_microbatches = 2;
  options.max_model_len = 64;
  options.max_sequences = 32;
  options.compute_threads = 2;
  options.observe_logits = observe;
  return options;
}

StageChain::Options OnDevice(bool observe) {
  StageChain::Options options = Options(observe);
  options.device_bytes = kDeviceBytes;
  return options;
}

std::vector<StepResult> ResultsOf(const DecoderSpec& spec,
                                  const StageChain::Options& options,
                                  const std::vector<SamplingParams>& kinds,
                                  uint64_t* d2h_bytes = nullptr) {
  auto chain = StageChain::Create(spec, RandomSource(3), options);
  EXPECT_TRUE(chain.ok()) << chain.status();
  if (!chain.ok()) return {};
  auto results = RunSamplingKinds(**chain, kinds, spec.vocab_size);
  EXPECT_TRUE(results.ok()) << results.status();
  if (!results.ok()) return {};
  if (d2h_bytes != nullptr) *d2h_bytes = (*chain)->stage(0).stats().d2h_bytes;
  return *std::move(results);
}

bool SameBits(float a, float b) { return std::memcmp(&a, &b, sizeof(a)) == 0; }

void ExpectSameBits(const std::vector<TokenLogprob>& got,
                    const std::vector<TokenLogprob>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].token, want[i].token);
    EXPECT_TRUE(SameBits(got[i].logprob, want[i].logprob));
  }
}

void ExpectSameBits(const std::vector<StepResult>& got,
                    const std::vector<StepResult>& want) {
  ASSERT_FALSE(want.empty());
  ASSERT_EQ(got.size(), want.size());
  for (size_t step = 0; step < want.size(); ++step) {
    SCOPED_TRACE(testing::Message() << "step " << step);
    ASSERT_EQ(got[step].tokens.size(), want[step].tokens.size());
    for (size_t i = 0; i < want[step].tokens.size(); ++i) {
      const SampledToken& a = got[step].tokens[i];
      const SampledToken& b = want[step].tokens[i];
      EXPECT_EQ(a.sequence, b.sequence);
      EXPECT_GE(a.token, 0);
      EXPECT_EQ(a.token, b.token);
      EXPECT_TRUE(SameBits(a.logprob, b.logprob));
      ExpectSameBits(a.top, b.top);
    }
    ASSERT_EQ(got[step].scores.size(), want[step].scores.size());
    for (size_t i = 0; i < want[step].scores.size(); ++i) {
      const TokenScores& a = got[step].scores[i];
      const TokenScores& b = want[step].scores[i];
      EXPECT_EQ(a.sequence, b.sequence);
      EXPECT_EQ(a.begin, b.begin);
      ASSERT_EQ(a.logprobs.size(), b.logprobs.size());
      for (size_t j = 0; j < b.logprobs.size(); ++j) {
        EXPECT_LT(a.logprobs[j], 0);
        EXPECT_TRUE(SameBits(a.logprobs[j], b.logprobs[j]));
      }
      EXPECT_EQ(a.num_top, b.num_top);
      ExpectSameBits(a.top, b.top);
    }
  }
}

class StageHeadTest : public testing::TestWithParam<bool> {};

TEST_P(StageHeadTest, SameBitsWhoeverSamples) {
  const DecoderSpec spec = Spec(GetParam());
  const auto kinds = SamplingKinds();
  // The host samples from all logits here.
  const auto expected = ResultsOf(spec, Options(true), kinds);
  // There are as many scored positions and tokens as there should be.
  ASSERT_EQ(expected.size(), 6u);
  EXPECT_EQ(expected[0].tokens.size(), kinds.size());
  EXPECT_EQ(expected[0].scores.size(), 2 * kinds.size());
  EXPECT_EQ(expected[5].scores.size(), kinds.size());
  ExpectSameBits(ResultsOf(spec, Options(false), kinds), expected);
  ExpectSameBits(ResultsOf(spec, OnDevice(true), kinds), expected);
  ExpectSameBits(ResultsOf(spec, OnDevice(false), kinds), expected);
}

TEST_P(StageHeadTest, OnlyWantedLogitsAreBrought) {
  const DecoderSpec spec = Spec(GetParam());
  const uint64_t row = sizeof(float) * spec.vocab_size;
  uint64_t all = 0, some = 0, none = 0;
  ResultsOf(spec, OnDevice(true), SamplingKinds(), &all);
  ResultsOf(spec, OnDevice(false), SamplingKinds(), &some);
  std::vector<SamplingParams> simple;
  for (const SamplingParams& params : SamplingKinds()) {
    if (Sampler(params, 0).Request(0).has_value()) simple.push_back(params);
  }
  ASSERT_EQ(simple.size(), 7u);
  ResultsOf(spec, OnDevice(false), simple, &none);
  EXPECT_GT(all, 100 * row);
  EXPECT_LT(some, all / 2);
  EXPECT_GT(some, 20 * row);
  EXPECT_EQ(none, 0u);
}

INSTANTIATE_TEST_SUITE_P(Heads, StageHeadTest, testing::Bool(),
                         [](const auto& info) {
                           return info.param ? "InSections" : "Whole";
                         });

}  // namespace
}  // namespace sluice
