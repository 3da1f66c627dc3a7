// Rows that are sampled and scored in one step, each in its own way, on the
// CUDA backend: tokens are the CPU's, and log-probabilities but for the order
// of sums. The streams of the device do their work as late as they may.

#include <cublasLt.h>
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "tests/cuda/emulation/steady_test.h"
#include "tests/cuda/emulation/streams.h"
#include "tests/parity/random_source.h"
#include "tests/parity/stage_chain.h"
#include "tests/support/temp_dir.h"
#include "tests/unit/exec/sampling_kinds.h"

namespace sluice {
namespace {

// The head has one section, or several.
class StageSamplingTest : public testing::TestWithParam<bool> {
 protected:
  const emulation::SteadyTest emulation_;

  std::vector<StepResult> Run(const std::string& policy, bool on_device,
                              bool observe) {
    StageChain::Options options;
    options.policy.max_step_tokens = 256;
    options.policy.num_microbatches = 2;
    const absl::Status status = UpdatePolicy(policy, &options.policy);
    EXPECT_TRUE(status.ok()) << status;
    options.max_model_len = 64;
    options.max_sequences = 32;
    options.disk_dir = dir_.path();
    options.observe_logits = observe;
    if (on_device) {
      options.device_bytes = uint64_t{64} << 20;
      options.device = {BackendKind::kCuda};
    }
    auto chain = StageChain::Create(spec_, RandomSource(3), options);
    EXPECT_TRUE(chain.ok()) << chain.status();
    if (!chain.ok()) return {};
    const size_t before = emulation::PageableBytes();
    auto results = RunSamplingKinds(**chain, SamplingKinds(), spec_.vocab_size);
    pageable_bytes_ = emulation::PageableBytes() - before;
    EXPECT_TRUE(results.ok()) << results.status();
    return results.ok() ? *std::move(results) : std::vector<StepResult>();
  }

  const DecoderSpec spec_ =
      LlamaSpec(2, 64, 4, 2, 100, GetParam() ? 9001 : 301);
  TempDir dir_ = TempDir::OnDisk();
  size_t pageable_bytes_ = 0;  // copied from or to memory that is not pinned
};

void ExpectNear(const std::vector<TokenLogprob>& got,
                const std::vector<TokenLogprob>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].token, want[i].token);
    EXPECT_NEAR(got[i].logprob, want[i].logprob, 1e-4);
  }
}

void ExpectNear(const std::vector<StepResult>& got,
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
      EXPECT_EQ(a.token, b.token);
      EXPECT_NEAR(a.logprob, b.logprob, 1e-4);
      ExpectNear(a.top, b.top);
    }
    ASSERT_EQ(got[step].scores.size(), want[step].scores.size());
    for (size_t i = 0; i < want[step].scores.size(); ++i) {
      const TokenScores& a = got[step].scores[i];
      const TokenScores& b = want[step].scores[i];
      EXPECT_EQ(a.sequence, b.sequence);
      ASSERT_EQ(a.logprobs.size(), b.logprobs.size());
      for (size_t j = 0; j < b.logprobs.size(); ++j) {
        EXPECT_NEAR(a.logprobs[j], b.logprobs[j], 1e-4);
      }
      ExpectNear(a.top, b.top);
    }
  }
}

TEST_P(StageSamplingTest, TheCpusTokens) {
  const auto expected = Run("", false, true);
  for (const char* policy :
       {"w=100/0/0 c=100/0/0 h=100/0/0", "w=0/50/50 c=0/50/50 h=0/50/50"}) {
    for (const bool observe : {false, true}) {
      SCOPED_TRACE(testing::Message() << policy << ", observed: " << observe);
      ExpectNear(Run(policy, true, observe), expected);
      EXPECT_EQ(pageable_bytes_, 0u);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Heads, StageSamplingTest, testing::Bool(),
                         [](const auto& info) {
                           return info.param ? "InSections" : "Whole";
                         });

}  // namespace
}  // namespace sluice
