// Whole stages on the CUDA backend: wherever weights, KV cache and activations
// lie, and wherever attention runs, tokens and logits are those of the CPU
// backend with all in memory, but for the order in which sums are taken. The
// streams of the emulated device do their work as late as they may.

#include <cublasLt.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/parity/random_source.h"
#include "tests/parity/stage_chain.h"
#include "tests/support/temp_dir.h"
#include "tests/unit/exec/placement_testing.h"
#ifdef SLUICE_CUDA_EMULATED
#include "tests/cuda/emulation/steady_test.h"
#include "tests/cuda/emulation/streams.h"
#endif

namespace sluice {
namespace {

constexpr uint64_t kRoomy = uint64_t{128} << 20;
#ifdef SLUICE_CUDA_EMULATED
constexpr double kOtherOrder = 1e-5;
#else
// cuBLASLt's algorithms are chosen by what they take, and so may be others each
// time.
constexpr double kOtherOrder = 1e-4;
#endif

class StageCudaTest : public testing::TestWithParam<bool> {
 protected:
#ifdef SLUICE_CUDA_EMULATED
  const emulation::SteadyTest emulation_;
#endif

  Outcome Run(const std::string& text, const std::vector<int>& cuts = {}) {
    return Run(With(text), cuts);
  }
  Outcome Run(const Policy& policy, const std::vector<int>& cuts = {}) {
    Outcome run;
    RunPlacement(spec_,
                 {.policy = policy,
                  .disk_dir = dir_.path(),
                  .cuts = cuts,
                  .device_bytes = kRoomy,
                  .device = {BackendKind::kCuda}},
                 &run);
    return run;
  }

  // Returns the largest relative error of the logits of a position; of each
  // sequence's first only, which no token of its own led to, or of all.
  static double Error(const Outcome& got, const Outcome& want,
                      bool first_only = false) {
    EXPECT_EQ(got.logits.size(), want.logits.size());
    double most = 0;
    int64_t last_sequence = -1;
    for (const auto& [position, expected] : want.logits) {
      if (std::exchange(last_sequence, position.first) == position.first &&
          first_only) {
        continue;
      }
      const auto it = got.logits.find(position);
      if (it == got.logits.end()) return 1;
      double error = 0, norm = 0;
      for (size_t i = 0; i < expected.size(); ++i) {
        error += std::pow(it->second[i] - expected[i], 2);
        norm += std::pow(expected[i], 2);
      }
      most = std::max(most, std::sqrt(error / norm));
    }
    return most;
  }

  const DecoderSpec spec_ = PlacementSpec(GetParam());
  TempDir dir_ = TempDir::OnDisk();
};

TEST_P(StageCudaTest, SameTokensWhereverThingsLie) {
  Outcome expected;
  RunPlacement(spec_, {.policy = With("")}, &expected);
  ASSERT_FALSE(HasFatalFailure());
  int count = 0;
  for (const char* text : {
           "w=100/0/0 c=100/0/0 h=100/0/0",
           "w=0/50/50 c=0/50/50 h=0/50/50 num-microbatches=3",
           "w=40/30/30 c=40/30/30 h=50/50/0",
           "w=30/70/0 c=20/40/40 h=40/60/0 attention-site=device",
           "w=33/67/0 c=30/70/0 h=50/50/0 schedule=row packing=off",
       }) {
    SCOPED_TRACE(text);
    const Outcome run = Run(
        text, count++ % 3 == 1 ? std::vector<int>{1, 3} : std::vector<int>{});
    ASSERT_FALSE(HasFatalFailure());
    EXPECT_TRUE(run.tokens == expected.tokens);
    EXPECT_LT(Error(run, expected), kOtherOrder);
  }
}

// Hidden states that are pooled come from the device, and are the CPU's but for
// the order of sums.
TEST_P(StageCudaTest, PooledVectorsAreTheCpus) {
  constexpr int32_t kTokens = 200;
  const auto pool = [&](uint64_t device_bytes, int32_t chunk) {
    StageChain::Options options;
    options.policy = With("");
    options.policy.max_step_tokens = 256;
    options.observe_logits = false;
    options.device_bytes = device_bytes;
    options.device = {BackendKind::kCuda};
    if (device_bytes == 0) options.device = {};
    auto chain = StageChain::Create(spec_, RandomSource(3), options);
    EXPECT_TRUE(chain.ok()) << chain.status();
    StepResult result;
    for (int32_t start = 0; chain.ok() && start < kTokens; start += chunk) {
      const int32_t n = std::min(chunk, kTokens - start);
      StepPlan plan;
      plan.step = start;
      if (start == 0) {
        plan.admit = {{SequenceId(1), kTokens, kTokens, {}, Pooling::kMean}};
      }
      MicroBatch& batch = plan.micro_batches.emplace_back();
      batch.segments = {{SequenceId(1), start, n, start + n == kTokens}};
      for (int32_t i = start; i < start + n; ++i) {
        batch.tokens.push_back(i * 7 % spec_.vocab_size);
      }
      const absl::Status status = (*chain)->RunStep(plan, &result);
      EXPECT_TRUE(status.ok()) << status;
    }
    return result.pooled.empty() ? std::vector<float>()
                                 : result.pooled[0].values;
  };
  const std::vector<float> expected = pool(0, kTokens);
  const std::vector<float> got = pool(kRoomy, kTokens);
  ASSERT_EQ(got.size(), static_cast<size_t>(spec_.hidden_size));
  ASSERT_EQ(got.size(), expected.size());
  double error = 0, norm = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    error += std::pow(got[i] - expected[i], 2);
    norm += std::pow(expected[i], 2);
  }
  EXPECT_LT(std::sqrt(error / norm), kOtherOrder);
}

// Quantized data is the same wherever it lies. The groups of a device's gate
// and up columns are not the CPU's, and what attention on the host makes of
// codes is a little other than what the device does.
TEST_P(StageCudaTest, CompressedDataToo) {
  struct Case {
    const char* formats;
    double bound;      // between placements
    double cpu_bound;  // to the CPU
  };
  for (const Case& c :
       {Case{"compress-weights=int8 compress-kv=int4 ", 2e-1, 3e-1},
        Case{"compress-weights=int4 num-microbatches=1 ", kOtherOrder, 3e-1}}) {
    Outcome on_cpu;
    RunPlacement(spec_, {.policy = With(c.formats)}, &on_cpu);
    const Outcome expected =
        Run(absl::StrCat(c.formats, "w=100/0/0 c=100/0/0 h=100/0/0"));
    ASSERT_FALSE(HasFatalFailure());
    EXPECT_LT(Error(expected, on_cpu, true), c.cpu_bound) << c.formats;
    for (const char* text : {"w=30/30/40 c=30/70/0"}) {
      SCOPED_TRACE(absl::StrCat(c.formats, text));
      const Outcome run = Run(absl::StrCat(c.formats, text));
      ASSERT_FALSE(HasFatalFailure());
      EXPECT_LT(Error(run, expected, true), c.bound);
    }
  }
}

// Steps that come again and again are launched as one: by a stage in the
// middle, which gives something on, and by the last one.
TEST_P(StageCudaTest, StepsAreRecorded) {
  StageChain::Options options;
  options.policy = With("w=100/0/0 c=100/0/0 h=100/0/0 num-microbatches=1");
  options.max_model_len = 200;
  options.cuts = {2};
  std::vector<ChainRequest> requests = PlacementRequests(spec_.vocab_size);
  requests.resize(5);
  for (ChainRequest& request : requests) {
    request.enters_at_step = 0;
    request.new_tokens = 14;
  }
  auto on_cpu = StageChain::Create(spec_, RandomSource(3), options);
  ASSERT_TRUE(on_cpu.ok()) << on_cpu.status();
  const auto expected = RunRequests(**on_cpu, requests, 1);
  ASSERT_TRUE(expected.ok()) << expected.status();
  options.device_bytes = kRoomy;
  options.device = {BackendKind::kCuda};
  auto on_gpu = StageChain::Create(spec_, RandomSource(3), options);
  ASSERT_TRUE(on_gpu.ok()) << on_gpu.status();
#ifdef SLUICE_CUDA_EMULATED
  emulation::TakeGraphLaunches();
#endif
  for (int round = 0; round < 2; ++round) {
    const auto tokens = RunRequests(**on_gpu, requests, 1, 100 * round);
    ASSERT_TRUE(tokens.ok()) << tokens.status();
    EXPECT_EQ(*tokens, *expected);
#ifdef SLUICE_CUDA_EMULATED
    // The first steps show what will come again; the others are launched as
    // graphs.
    EXPECT_GE(emulation::TakeGraphLaunches(), 2 * (round == 0 ? 9 : 12));
#endif
    (*on_gpu)->Reset();
  }
  on_gpu->reset();
#ifdef SLUICE_CUDA_EMULATED
  EXPECT_EQ(emulation::LiveGraphs(), 0);
#endif
}

// In float16 the host embeds and attends, but has no layers of its own.
TEST_P(StageCudaTest, InFloat16) {
  Outcome expected;
  RunPlacement(spec_, {.policy = With("")}, &expected);
  for (const char* text :
       {"w=100/0/0 c=100/0/0 h=100/0/0", "w=40/30/30 c=0/50/50 h=50/50/0"}) {
    SCOPED_TRACE(text);
    Policy policy = With(text);
    policy.dtype = DType::kFloat16;
    const Outcome run = Run(policy);
    ASSERT_FALSE(HasFatalFailure());
    EXPECT_LT(Error(run, expected, true), 1e-2);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, StageCudaTest, testing::Bool(),
                         [](const auto& info) {
                           return info.param ? "opt" : "llama";
                         });

}  // namespace
}  // namespace sluice
