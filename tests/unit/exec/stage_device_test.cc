// A stage on a device with memory of its own: wherever weights, KV cache and
// activations lie, and wherever attention runs, the tokens and logits are the
// bits of the CPU backend with all in memory. The discrete CPU backend refuses
// to compute with what was not copied to the device, so each run also shows
// that everything was.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/parity/random_source.h"
#include "tests/parity/stage_chain.h"
#include "tests/support/temp_dir.h"
#include "tests/unit/exec/placement_testing.h"

namespace sluice {
namespace {

constexpr uint64_t kRoomy = uint64_t{64} << 20;

class StageDeviceTest : public testing::TestWithParam<bool> {
 protected:
  const DecoderSpec spec_ = PlacementSpec(GetParam());
  TempDir dir_ = TempDir::OnDisk();
};

TEST_P(StageDeviceTest, SameBitsWhereverThingsLie) {
  Outcome expected;
  RunPlacement(spec_, {.policy = With("")}, &expected);
  ASSERT_FALSE(HasFatalFailure());
  int count = 0;
  for (const char* text : {
           // In these, each kind of data lies on one tier.
           "",
           "w=100/0/0 c=100/0/0 h=100/0/0",
           "w=0/100/0 c=100/0/0 h=100/0/0",
           "w=0/0/100 c=100/0/0 h=100/0/0",
           "w=100/0/0 c=0/100/0 h=100/0/0",
           "w=100/0/0 c=0/0/100 h=100/0/0",
           "w=100/0/0 c=100/0/0 h=0/100/0",
           "w=0/100/0 c=0/100/0 h=0/100/0",
           "w=0/0/100 c=0/0/100 h=0/100/0",
           // In these, some kinds of data are spread over tiers.
           "w=50/30/20 c=40/30/30 h=50/50/0",
           "w=33/67/0 c=50/50/0 h=40/60/0 num-microbatches=5",
           "w=20/20/60 c=10/45/45 h=0/100/0 num-microbatches=5",
           "w=90/0/10 c=30/70/0 num-microbatches=1",
           "w=1/98/1 c=50/0/50 h=50/50/0 overlap=off",
           "w=40/30/30 c=20/40/40 h=0/100/0 schedule=row",
           "w=0/50/50 c=0/50/50 h=100/0/0 schedule=row num-microbatches=3",
           "w=25/25/50 c=0/100/0 h=0/100/0 overlap=off schedule=row",
           // KV that goes to the device.
           "c=0/100/0 attention-site=device",
           "c=0/0/100 attention-site=device",
           "w=30/30/40 c=30/40/30 h=50/50/0 attention-site=device",
           "w=0/50/50 c=0/50/50 attention-site=device num-microbatches=5",
           "c=30/30/40 attention-site=device schedule=row num-microbatches=3",
           "c=20/40/40 attention-site=device overlap=off",
           // Activations on three tiers.
           "h=0/0/100 num-microbatches=4",
           "w=30/30/40 c=30/30/40 h=25/25/50 num-microbatches=5",
           "c=0/50/50 h=20/0/80 num-microbatches=5 attention-site=device",
           "c=0/100/0 h=0/50/50 num-microbatches=3 schedule=row",
           "h=50/0/50 num-microbatches=4 overlap=off packing=off",
       }) {
    SCOPED_TRACE(text);
    const Policy policy = With(text);
    // The model runs on one stage, and every second time on three, too.
    std::vector<std::vector<int>> splits = {{}};
    if (count++ % 2 == 0) splits.push_back({1, 3});
    for (const std::vector<int>& cuts : splits) {
      Outcome run;
      RunPlacement(spec_,
                   {.policy = policy,
                    .disk_dir = dir_.path(),
                    .cuts = cuts,
                    .device_bytes = kRoomy},
                   &run);
      ASSERT_FALSE(HasFatalFailure());
      EXPECT_TRUE(run.tokens == expected.tokens);
      EXPECT_TRUE(run.logits == expected.logits);
      // At least weights and activations go to the device.
      EXPECT_GT(run.stats.h2d_bytes, 0u);
      EXPECT_EQ(run.stats.disk_read_bytes > 0, policy.weights.disk > 0 ||
                                                   policy.kv_cache.disk > 0 ||
                                                   policy.activations.disk > 0);
      EXPECT_EQ(run.stats.disk_write_bytes > 0,
                policy.kv_cache.disk > 0 || policy.activations.disk > 0);
      EXPECT_EQ(run.stats.host_attention_seconds > 0,
                policy.kv_cache.device < 1 && !policy.automatic_kv_cache &&
                    policy.attention_site == AttentionSite::kHost);
    }
  }
}

// Quantized weights are dequantized on the device; quantized pages are the same
// bytes wherever they are written.
TEST_P(StageDeviceTest, CompressedDataToo) {
  for (const char* formats :
       {"compress-weights=int8", "compress-weights=int4 num-microbatches=1",
        "compress-kv=int8 compress-weights=int4", "compress-kv=int4",
        "sparsity=0.25"}) {
    Outcome expected;
    RunPlacement(spec_, {.policy = With(formats)}, &expected);
    ASSERT_FALSE(HasFatalFailure());
    for (const char* text : {" w=30/30/40 c=30/30/40",
                             " w=0/100/0 c=0/100/0 attention-site=device"}) {
      SCOPED_TRACE(absl::StrCat(formats, text));
      Outcome run;
      RunPlacement(spec_,
                   {.policy = With(absl::StrCat(formats, text)),
                    .disk_dir = dir_.path(),
                    .device_bytes = kRoomy},
                   &run);
      ASSERT_FALSE(HasFatalFailure());
      EXPECT_TRUE(run.tokens == expected.tokens);
      EXPECT_TRUE(run.logits == expected.logits);
    }
  }
}

TEST_P(StageDeviceTest, SharesAreRealisedToAPercent) {
  for (const TierFractions& shares :
       std::vector<TierFractions>{{1, 0, 0},
                                  {0.9, 0.1, 0},
                                  {0.5, 0, 0.5},
                                  {0.37, 0.33, 0.3},
                                  {0.1, 0.2, 0.7},
                                  {0, 1, 0}}) {
    Policy policy = With("");
    policy.automatic_weights = policy.automatic_activations = false;
    policy.weights = shares;
    policy.activations = {0.5, 0.5, 0};
    Outcome run;
    RunPlacement(
        spec_,
        {.policy = policy, .disk_dir = dir_.path(), .device_bytes = kRoomy},
        &run);
    ASSERT_FALSE(HasFatalFailure());
    const RealisedPlacement& p = run.placement;
    const auto weights =
        static_cast<double>(p.weight_bytes - p.embedding_bytes);
    EXPECT_NEAR(static_cast<double>(p.weight_device_bytes) / weights,
                shares.device, 0.01);
    EXPECT_NEAR(
        static_cast<double>(p.weight_host_bytes - p.embedding_host_bytes) /
            weights,
        shares.host, 0.01);
    EXPECT_EQ(p.activation_device_bytes, p.activation_bytes / 2);
  }
}

// A policy that leaves placement open fits into any device that it fits into at
// all, and what does not fit is refused before anything is loaded.
TEST_P(StageDeviceTest, AnyAmountOfDeviceMemoryIsUsedOrRefused) {
  StageChain::Options options;
  options.max_model_len = 200;
  options.max_sequences = 12;
  options.disk_dir = dir_.path();
  int runs = 0, refusals = 0;
  for (const char* text :
       {"", "attention-site=device", "w=50/50/0", "c=30/30/40",
        "num-microbatches=4 compress-weights=int8", "overlap=off"}) {
    options.policy = With(text);
    options.device_bytes = 0;
    auto plain = StageChain::Create(spec_, RandomSource(3), options);
    ASSERT_TRUE(plain.ok()) << plain.status();
    const auto expected =
        RunRequests(**plain, PlacementRequests(spec_.vocab_size),
                    options.policy.num_microbatches);
    ASSERT_TRUE(expected.ok()) << expected.status();
    uint64_t last_weights = 0;
    for (uint64_t bytes = uint64_t{1} << 20; bytes <= kRoomy;
         bytes += bytes / 3) {
      SCOPED_TRACE(absl::StrCat(text, " in ", bytes));
      options.device_bytes = bytes;
      auto chain = StageChain::Create(spec_, RandomSource(3), options);
      if (!chain.ok()) {
        EXPECT_TRUE(absl::IsResourceExhausted(chain.status()))
            << chain.status();
        EXPECT_EQ(last_weights, 0u) << "what fits into less fits";
        ++refusals;
        continue;
      }
      ++runs;
      const auto tokens =
          RunRequests(**chain, PlacementRequests(spec_.vocab_size),
                      options.policy.num_microbatches);
      ASSERT_TRUE(tokens.ok()) << tokens.status();
      EXPECT_EQ(*tokens, *expected);
      // The stage's budgets are memory's, the disk's and the device's, of which
      // this is the third.
      EXPECT_LE((*chain)->budget(2).peak_bytes(), bytes);
      const uint64_t weights =
          (*chain)->stage(0).placement().weight_device_bytes;
      EXPECT_GE(weights + (weights / 50), last_weights);
      last_weights = weights;
    }
  }
  EXPECT_GT(runs, 20);
  EXPECT_GT(refusals, 0);
}

TEST_P(StageDeviceTest, ATableSaysWhatWantsTheDevice) {
  StageChain::Options options;
  options.max_model_len = 200;
  options.max_sequences = 12;
  options.device_bytes = uint64_t{2} << 20;
  options.policy = With("w=100/0/0 c=100/0/0 h=100/0/0");
  const auto chain = StageChain::Create(spec_, RandomSource(3), options);
  ASSERT_TRUE(absl::IsResourceExhausted(chain.status())) << chain.status();
  for (const char* word : {"device memory is short by", "--device-memory",
                           "2097152", "\n  workspace ", "\n  weights ",
                           "\n  kv cache ", "\n  activations "}) {
    EXPECT_THAT(chain.status().message(), testing::HasSubstr(word));
  }
}

// Damage shows when the weights first come from disk, on their way to the
// device; whoever waits for them gets it.
TEST_P(StageDeviceTest, AnErrorOfTheDiskComesThrough) {
  StageChain::Options options;
  options.policy = With("w=30/20/50");
  options.max_model_len = 200;
  options.disk_dir = dir_.path();
  options.device_bytes = kRoomy;
  const auto run = [&]() -> absl::StatusOr<std::vector<std::vector<int32_t>>> {
    auto chain = StageChain::Create(spec_, RandomSource(3), options);
    if (!chain.ok()) return chain.status();
    auto first = RunRequests(**chain, PlacementRequests(spec_.vocab_size), 2);
    if (first.ok()) return first;
    // The error stays until the reset, and then comes again.
    auto second = RunRequests(**chain, PlacementRequests(spec_.vocab_size), 2);
    EXPECT_FALSE(second.ok());
    (*chain)->Reset();
    auto third =
        RunRequests(**chain, PlacementRequests(spec_.vocab_size), 2, 100);
    EXPECT_EQ(third.status().code(), first.status().code());
    return first;
  };
  const auto expected = run();
  ASSERT_TRUE(expected.ok()) << expected.status();
  for (const auto& entry :
       std::filesystem::recursive_directory_iterator(dir_.path())) {
    if (entry.path().filename() != "layer-0002.img") continue;
    std::fstream file(entry.path(),
                      std::ios::in | std::ios::out | std::ios::binary);
    const auto at = static_cast<std::streamoff>(entry.file_size()) * 9 / 10;
    file.seekg(at);
    const int byte = file.get();
    file.seekp(at);
    file.put(static_cast<char>(byte ^ 1));
  }
  const auto damaged = run();
  EXPECT_TRUE(absl::IsDataLoss(damaged.status())) << damaged.status();
  EXPECT_THAT(damaged.status().message(), testing::HasSubstr("layer-0002.img"));
  EXPECT_EQ(*run(), *expected) << "the image was made anew";
}

// A step that ends early, with copies, attention and reads under way, disturbs
// none after the reset.
TEST_P(StageDeviceTest, AStepThatBreaksOffLeavesNothing) {
  for (const char* text :
       {"w=20/40/40 c=20/40/40 h=0/100/0", "w=0/100/0 c=0/100/0 h=50/0/50",
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

INSTANTIATE_TEST_SUITE_P(Models, StageDeviceTest, testing::Bool(),
                         [](const auto& info) {
                           return info.param ? "opt" : "llama";
                         });

}  // namespace
}  // namespace sluice
