// A stage waits for its device wherever it must, and nowhere else: around a
// backend that computes as late as it may, wherever things lie, the tokens and
// logits are the same bits.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/kernels/backend_parts.h"
#include "runtime/memory/cpu_device.h"
#include "tests/parity/random_source.h"
#include "tests/parity/stage_chain.h"
#include "tests/support/temp_dir.h"
#include "tests/unit/exec/late_backend.h"
#include "tests/unit/exec/placement_testing.h"
#include "tests/unit/exec/sampling_kinds.h"

namespace sluice {
namespace {

constexpr uint64_t kRoomy = uint64_t{64} << 20;

class StageLateTest : public testing::TestWithParam<bool> {
 protected:
  // Wraps a backend and remembers the last one that was wrapped.
  StageChain::WrapBackend Late() {
    return [this](BackendParts& parts, Device*) {
      late_ = LateBackend::Wrap(parts, spec_.hidden_size);
    };
  }
  const DecoderSpec spec_ = PlacementSpec(GetParam());
  LateBackend* late_ = nullptr;
  TempDir dir_ = TempDir::OnDisk();
};

TEST_P(StageLateTest, SameBitsWhereverThingsLie) {
  for (const char* formats :
       {"", " compress-weights=int8", " compress-kv=int4 sparsity=0.5"}) {
    Outcome expected;
    RunPlacement(spec_, {.policy = With(formats)}, &expected);
    ASSERT_FALSE(HasFatalFailure());
    int count = 0;
    for (const char* text : {
             "w=100/0/0 c=100/0/0 h=100/0/0",
             "w=0/100/0 c=100/0/0 h=100/0/0",
             "w=0/0/100 c=100/0/0 h=100/0/0",
             "w=100/0/0 c=0/100/0 h=100/0/0",
             "w=100/0/0 c=0/0/100 h=100/0/0",
             "w=100/0/0 c=100/0/0 h=0/100/0",
             "w=0/100/0 c=0/100/0 h=0/100/0 num-microbatches=5",
             "w=50/30/20 c=40/30/30 h=50/50/0",
             "w=20/20/60 c=10/45/45 h=0/100/0 num-microbatches=5",
             "w=90/0/10 c=30/70/0 num-microbatches=1",
             "w=1/98/1 c=50/0/50 h=50/50/0 overlap=off",
             "w=0/50/50 c=0/50/50 h=100/0/0 schedule=row num-microbatches=3",
             "w=25/25/50 c=0/100/0 h=0/100/0 overlap=off schedule=row",
             "w=30/70/0 c=0/100/0 attention-site=device num-microbatches=5",
             "w=30/30/40 c=30/40/30 h=50/50/0 attention-site=device",
             "w=0/50/50 c=0/50/50 attention-site=device schedule=row",
             "c=20/40/40 attention-site=device overlap=off",
             "h=0/0/100 num-microbatches=4",
             "w=30/30/40 c=30/30/40 h=25/25/50 num-microbatches=5",
             "h=50/0/50 num-microbatches=4 overlap=off packing=off",
         }) {
      SCOPED_TRACE(absl::StrCat(text, formats));
      std::vector<int> cuts;
      if (count++ % 3 == 0) cuts = {1, 3};
      Outcome run;
      RunPlacement(spec_,
                   {.policy = With(absl::StrCat(text, formats)),
                    .disk_dir = dir_.path(),
                    .cuts = cuts,
                    .device_bytes = kRoomy,
                    .wrap_backend = Late()},
                   &run);
      ASSERT_FALSE(HasFatalFailure());
      EXPECT_TRUE(run.tokens == expected.tokens);
      EXPECT_TRUE(run.logits == expected.logits);
    }
  }
}

// Only logits are waited for.
TEST_P(StageLateTest, AResidentModelDoesNotWait) {
  for (const char* text :
       {"w=100/0/0 c=100/0/0 h=100/0/0",
        "w=100/0/0 c=100/0/0 h=100/0/0 compress-weights=int8",
        "w=100/0/0 c=100/0/0 h=100/0/0 schedule=row num-microbatches=3"}) {
    SCOPED_TRACE(text);
    Outcome run;
    RunPlacement(spec_,
                 {.policy = With(text),
                  .device_bytes = kRoomy,
                  .wrap_backend = Late(),
                  .observe =
                      [&](StageChain&) {
                        // Prompts without a new token have none.
                        EXPECT_LE(late_->waits(), 4);
                        EXPECT_GT(late_->computed(), 50);
                      }},
                 &run);
    ASSERT_FALSE(HasFatalFailure());
  }
}

// A step whose logits nobody asks for is computed by its end, too.
TEST_P(StageLateTest, StepsWithoutANewTokenAreDoneAtTheirEnd) {
  ChainRequest request = PlacementRequests(spec_.vocab_size)[6];
  ASSERT_GT(request.prompt.size(), 3 * 48u);
  StageChain::Options options;
  options.policy = With("w=100/0/0 c=100/0/0 h=100/0/0 num-microbatches=1");
  options.max_model_len = 200;
  auto plain = StageChain::Create(spec_, RandomSource(3), options);
  ASSERT_TRUE(plain.ok()) << plain.status();
  const auto expected = RunRequests(**plain, {request}, 1);
  ASSERT_TRUE(expected.ok()) << expected.status();
  options.device_bytes = kRoomy;
  options.wrap_backend = Late();
  auto late = StageChain::Create(spec_, RandomSource(3), options);
  ASSERT_TRUE(late.ok()) << late.status();
  const auto tokens = RunRequests(**late, {request}, 1);
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  EXPECT_EQ(*tokens, *expected);
  EXPECT_EQ(late_->waits(), 3);
}

// Logits that nobody brings are not read before they are there, either.
TEST_P(StageLateTest, SamplesAreOfWhatWasComputed) {
  StageChain::Options options;
  options.policy = With("w=100/0/0 c=100/0/0 h=100/0/0");
  options.max_model_len = 64;
  auto plain = StageChain::Create(spec_, RandomSource(3), options);
  ASSERT_TRUE(plain.ok()) << plain.status();
  const auto expected =
      RunSamplingKinds(**plain, SamplingKinds(), spec_.vocab_size);
  ASSERT_TRUE(expected.ok()) << expected.status();
  options.device_bytes = kRoomy;
  options.wrap_backend = Late();
  options.observe_logits = false;
  auto late = StageChain::Create(spec_, RandomSource(3), options);
  ASSERT_TRUE(late.ok()) << late.status();
  const auto results =
      RunSamplingKinds(**late, SamplingKinds(), spec_.vocab_size);
  ASSERT_TRUE(results.ok()) << results.status();
  for (size_t step = 0; step < expected->size(); ++step) {
    const StepResult& got = (*results)[step];
    const StepResult& want = (*expected)[step];
    ASSERT_EQ(got.tokens.size(), want.tokens.size());
    for (size_t i = 0; i < want.tokens.size(); ++i) {
      EXPECT_EQ(got.tokens[i].token, want.tokens[i].token);
      EXPECT_EQ(got.tokens[i].logprob, want.tokens[i].logprob);
    }
    ASSERT_EQ(got.scores.size(), want.scores.size());
    for (size_t i = 0; i < want.scores.size(); ++i) {
      EXPECT_EQ(got.scores[i].logprobs, want.scores[i].logprobs);
    }
  }
  EXPECT_LE(late_->waits(), 1);
}

// A call that fails leaves others that were not computed. They disturb nothing
// after the reset.
TEST_P(StageLateTest, CallsBeforeOneThatFailsLeaveNothing) {
  for (const char* text :
       {"w=100/0/0 c=100/0/0 h=100/0/0", "w=20/40/40 c=20/40/40 h=0/100/0",
        "w=20/40/40 c=0/50/50 attention-site=device"}) {
    SCOPED_TRACE(text);
    StageChain::Options options;
    options.policy = With(text);
    options.max_model_len = 200;
    options.max_sequences = 12;
    options.disk_dir = dir_.path();
    options.device_bytes = kRoomy;
    options.wrap_backend = Late();
    auto chain = StageChain::Create(spec_, RandomSource(3), options);
    ASSERT_TRUE(chain.ok()) << chain.status();
    const auto requests = PlacementRequests(spec_.vocab_size);
    const auto expected = RunRequests(**chain, requests, 2);
    ASSERT_TRUE(expected.ok()) << expected.status();
    for (const int call : {0, 3, 10, 17, 30}) {
      late_->FailCall(call);
      EXPECT_TRUE(absl::IsUnavailable(
          RunRequests(**chain, requests, 2, 1000).status()));
      (*chain)->Reset();
      const auto again = RunRequests(**chain, requests, 2);
      ASSERT_TRUE(again.ok()) << again.status();
      EXPECT_EQ(*again, *expected);
      (*chain)->Reset();
    }
  }
}

// A step that ends early, with calls that were not computed, disturbs none
// after the reset.
TEST_P(StageLateTest, AStepThatBreaksOffLeavesNothing) {
  for (const char* text :
       {"w=20/40/40 c=20/40/40 h=0/100/0", "w=100/0/0 c=100/0/0 h=100/0/0",
        "w=20/40/40 c=0/50/50 attention-site=device schedule=row"}) {
    SCOPED_TRACE(text);
    StageChain::Options options;
    options.policy = With(text);
    options.policy.num_microbatches = 4;
    options.max_model_len = 200;
    options.max_sequences = 12;
    options.disk_dir = dir_.path();
    options.cuts = {3};
    options.device_bytes = kRoomy;
    options.wrap_backend = Late();
    auto chain = StageChain::Create(spec_, RandomSource(3), options);
    ASSERT_TRUE(chain.ok()) << chain.status();
    const auto expected =
        RunRequests(**chain, PlacementRequests(spec_.vocab_size), 4);
    ASSERT_TRUE(expected.ok()) << expected.status();
    StepPlan plan;
    for (int k = 0; k < 4; ++k) {
      const SequenceId id(1000 + k);
      plan.admit.push_back({id, 40, 60, {}});
      plan.micro_batches.push_back(
          {{{id, 0, 40, false}}, std::vector<int32_t>(40, k + 1)});
    }
    for (const int end : {0, 1, 3}) {
      const absl::Status status = (*chain)->stage(0).RunStep(
          plan, {},
          [&](int32_t k, const std::shared_ptr<ActivationBuffer>&) {
            return k == end ? absl::AbortedError("nobody listens")
                            : absl::OkStatus();
          },
          nullptr);
      EXPECT_TRUE(absl::IsAborted(status)) << status;
      (*chain)->Reset();
      const auto again =
          RunRequests(**chain, PlacementRequests(spec_.vocab_size), 4);
      ASSERT_TRUE(again.ok()) << again.status();
      EXPECT_EQ(*again, *expected);
      (*chain)->Reset();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, StageLateTest, testing::Bool(),
                         [](const auto& info) {
                           return info.param ? "opt" : "llama";
                         });

// Tests that the backend of these tests sees what it promises to see.
class LateBackendTest : public testing::Test {
 protected:
  void SetUp() override {
    auto device = CpuDevice::Create({.budget = &device_memory_});
    ASSERT_TRUE(device.ok()) << device.status();
    device_ = *std::move(device);
    BackendOptions options;
    options.layers = {0, 1};
    options.max_rows = 16;
    options.max_model_len = 64;
    options.budget = &host_memory_;
    options.device = device_.get();
    auto inner = CreateBackend(BackendKind::kCpuDiscrete, spec_, options);
    ASSERT_TRUE(inner.ok()) << inner.status();
    parts_ = *std::move(inner);
    late_ = LateBackend::Wrap(parts_, spec_.hidden_size);
    layer_ = *device_->Allocate("test", parts_.weights->LayerBytes(0));
    x_ = *device_->Allocate("test", kRows * spec_.hidden_size * sizeof(float));
    std::memset(x_.data(), 0, x_.bytes());
    ASSERT_TRUE(
        parts_.weights
            ->PackLayer(
                0, RandomSource(3), [](uint64_t) { return absl::OkStatus(); },
                PackedWindow::Whole(layer_.as<std::byte>(), layer_.bytes()))
            .ok());
  }
  absl::Status Mlp() {
    const BatchView batch = {.rows = kRows};
    return late_->Mlp(0, {PackedView::Whole(layer_.data()), false}, batch,
                      x_.as<float>());
  }

  static constexpr int32_t kRows = 3;
  const DecoderSpec spec_ = LlamaSpec(1, 32, 2, 2, 64, 50);
  MemoryBudget host_memory_{Tier::kHost, uint64_t{1} << 26};
  MemoryBudget device_memory_{Tier::kDevice, uint64_t{1} << 26};
  std::unique_ptr<Device> device_;
  BackendParts parts_;
  LateBackend* late_ = nullptr;  // its
  DeviceBuffer layer_, x_;
};

TEST_F(LateBackendTest, ResultsAreThereAfterFinish) {
  x_.as<float>()[0] = 1;
  ASSERT_TRUE(Mlp().ok());
  EXPECT_NE(x_.as<float>()[0], x_.as<float>()[0]) << "NaN";
  EXPECT_EQ(late_->waits(), 0);
  ASSERT_TRUE(late_->Finish().ok());
  EXPECT_EQ(x_.as<float>()[0], x_.as<float>()[0]);
  EXPECT_EQ(late_->waits(), 1);
  ASSERT_TRUE(late_->Finish().ok());
  EXPECT_EQ(late_->waits(), 1) << "there was nothing to wait for";
}

TEST_F(LateBackendTest, SeesThatSomebodyWrote) {
  ASSERT_TRUE(Mlp().ok());
  layer_.as<std::byte>()[100] ^= std::byte{1};
  absl::Status status = late_->Finish();
  EXPECT_TRUE(absl::IsInternal(status)) << status;
  EXPECT_THAT(status.message(), testing::HasSubstr("weights"));
  ASSERT_TRUE(Mlp().ok());
  x_.as<float>()[5] = 0;
  status = late_->Finish();
  EXPECT_TRUE(absl::IsInternal(status)) << status;
  EXPECT_THAT(status.message(), testing::HasSubstr("activations"));
}

}  // namespace
}  // namespace sluice
