// Stages of several ranks, tensor parallel: wherever each rank's weights, KV
// cache and activations lie, the tokens and logits are the bits of one rank
// with all in memory; and what ends one rank ends the step of all.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/exec/stage_loader.h"
#include "runtime/exec/tensor_stage.h"
#include "runtime/kernels/backend.h"
#include "runtime/kernels/backend_parts.h"
#include "runtime/placement/stage_placement.h"
#include "tests/parity/random_source.h"
#include "tests/parity/stage_chain.h"
#include "tests/support/temp_dir.h"
#include "tests/unit/exec/placement_testing.h"

namespace sluice {
namespace {

constexpr uint64_t kRoomy = uint64_t{64} << 20;

class StageRanksTest : public testing::TestWithParam<int> {
 protected:
  const DecoderSpec spec_ = PlacementSpec(GetParam());
  TempDir dir_ = TempDir::OnDisk();
};

TEST_P(StageRanksTest, SameBitsWhereverThingsLie) {
  Outcome expected;
  RunPlacement(spec_, {.policy = With("")}, &expected);
  ASSERT_FALSE(HasFatalFailure());
  int count = 0;
  for (const char* text : {
           "",
           "w=0/50/50",
           "c=0/50/50",
           "w=0/0/100 c=0/0/100",
           "w=0/70/30 c=0/30/70 schedule=row",
           "packing=off w=0/50/50 num-microbatches=5",
           "h=0/30/70 num-microbatches=5 w=0/50/50 c=0/50/50",
           "h=0/0/100 num-microbatches=3 overlap=off",
       }) {
    SCOPED_TRACE(text);
    PlacementRun run = {.policy = With(text),
                        .disk_dir = dir_.path(),
                        .ranks = ++count % 3 == 0 ? 4 : 2};
    if (count % 2 == 0) run.cuts = {1, 3};
    Outcome outcome;
    RunPlacement(spec_, run, &outcome);
    ASSERT_FALSE(HasFatalFailure());
    EXPECT_TRUE(outcome.tokens == expected.tokens);
    EXPECT_TRUE(outcome.logits == expected.logits);
    EXPECT_EQ(outcome.stats.disk_read_bytes > 0,
              run.policy.weights.disk > 0 || run.policy.kv_cache.disk > 0 ||
                  run.policy.activations.disk > 0);
  }
}

TEST_P(StageRanksTest, SameBitsOnDevices) {
  Outcome expected;
  RunPlacement(spec_, {.policy = With("")}, &expected);
  ASSERT_FALSE(HasFatalFailure());
  int count = 0;
  for (const char* text : {
           "",
           "w=100/0/0 c=100/0/0 h=100/0/0",
           "w=0/100/0 c=0/100/0 h=0/100/0",
           "w=50/30/20 c=40/30/30 h=50/50/0",
           "w=40/30/30 c=20/40/40 h=0/100/0 schedule=row",
           "w=30/30/40 c=30/40/30 h=50/50/0 attention-site=device",
           "w=30/30/40 c=30/30/40 h=25/25/50 num-microbatches=5",
       }) {
    SCOPED_TRACE(text);
    PlacementRun run = {.policy = With(text),
                        .disk_dir = dir_.path(),
                        .ranks = ++count % 3 == 0 ? 4 : 2,
                        .device_bytes = kRoomy};
    if (count % 2 == 0) run.cuts = {1, 3};
    Outcome outcome;
    RunPlacement(spec_, run, &outcome);
    ASSERT_FALSE(HasFatalFailure());
    EXPECT_TRUE(outcome.tokens == expected.tokens);
    EXPECT_TRUE(outcome.logits == expected.logits);
  }
}

INSTANTIATE_TEST_SUITE_P(Families, StageRanksTest,
                         testing::Range(0, kPlacementModels),
                         [](const auto& i) { return PlacementName(i.param); });

// A model whose quantized groups can be divided, one whose heads can't be, and
// one of more ranks than KV heads.
TEST(StageRanksFormatsTest, SameBitsInOtherFormats) {
  for (const DecoderSpec& spec :
       {LlamaSpec(2, 256, 4, 2, 512, 301), LlamaSpec(2, 96, 6, 2, 200, 301),
        LlamaSpec(2, 512, 4, 1, 640, 700)}) {
    SCOPED_TRACE(spec.hidden_size);
    for (const auto& [text, dtype] : std::vector<std::pair<const char*, DType>>{
             {"", DType::kBFloat16},
             {"compress-weights=int4", DType::kFloat32},
             {"compress-weights=int8 num-microbatches=1", DType::kBFloat16},
             {"compress-kv=int4 sparsity=0.3", DType::kFloat32}}) {
      SCOPED_TRACE(text);
      Policy policy = With(text);
      policy.dtype = dtype;
      for (const uint64_t device_bytes : {uint64_t{0}, kRoomy}) {
        Outcome expected;
        RunPlacement(spec, {.policy = policy, .device_bytes = device_bytes},
                     &expected);
        ASSERT_FALSE(HasFatalFailure());
        for (const int ranks : {2, 3, 4}) {
          SCOPED_TRACE(ranks);
          Outcome outcome;
          RunPlacement(
              spec,
              {.policy = policy, .ranks = ranks, .device_bytes = device_bytes},
              &outcome);
          ASSERT_FALSE(HasFatalFailure());
          EXPECT_TRUE(outcome.tokens == expected.tokens);
          EXPECT_TRUE(outcome.logits == expected.logits);
        }
      }
    }
  }
}

// A backend that fails when it is told to.
class FailingBackend : public Backend {
 public:
  FailingBackend(std::unique_ptr<Backend> inner, std::atomic<bool>* fail)
      : inner_(std::move(inner)), fail_(*fail) {}
  absl::Status DequantizeLayer(int layer, const PackedView& packed,
                               std::byte* out) override {
    return inner_->DequantizeLayer(layer, packed, out);
  }
  absl::Status Embed(const PackedView& packed, const BatchView& batch,
                     float* x) override {
    return inner_->Embed(packed, batch, x);
  }
  absl::Status ProjectQkv(int layer, const PackedLayer& packed,
                          const BatchView& batch, const float* x) override {
    if (fail_) return absl::DataLossError("a weight is not what it was");
    return inner_->ProjectQkv(layer, packed, batch, x);
  }
  absl::Status Attend(int layer, const BatchView& batch, int32_t first_segment,
                      int32_t count) override {
    return inner_->Attend(layer, batch, first_segment, count);
  }
  absl::Status ProjectOut(int layer, const PackedLayer& packed,
                          const BatchView& batch, float* x) override {
    return inner_->ProjectOut(layer, packed, batch, x);
  }
  absl::Status Mlp(int layer, const PackedLayer& packed, const BatchView& batch,
                   float* x) override {
    return inner_->Mlp(layer, packed, batch, x);
  }
  AttentionRows attention_rows(int32_t slot) override {
    return inner_->attention_rows(slot);
  }
  absl::Status FinalRows(const PackedView& packed,
                         std::span<const int32_t> rows_of_x, const float* x,
                         float* out) override {
    return inner_->FinalRows(packed, rows_of_x, x, out);
  }
  absl::Status HeadInput(const PackedView& packed,
                         std::span<const int32_t> rows_of_x, const float* x,
                         int32_t at) override {
    return inner_->HeadInput(packed, rows_of_x, x, at);
  }
  absl::Status HeadLogits(const PackedView& packed, int section,
                          int32_t rows) override {
    return inner_->HeadLogits(packed, section, rows);
  }
  absl::Status TakeLogits(std::span<LogitRow> rows) override {
    return inner_->TakeLogits(rows);
  }

 private:
  const std::unique_ptr<Backend> inner_;
  std::atomic<bool>& fail_;
};

TEST(StageRanksFailureTest, ARankThatFailsEndsTheStepOfAll) {
  const DecoderSpec spec = LlamaSpec(2, 96, 6, 2, 200, 301);
  constexpr int kRanks = 3;
  std::atomic<int> made{0};
  std::atomic<bool> fail{false}, sound{false};
  StageChain::Options options;
  options.ranks = kRanks;
  // Whichever backend is made last fails; the others must not wait for it.
  options.wrap_backend = [&](BackendParts& parts, Device*) {
    const bool last = ++made == kRanks;
    parts.backend = std::make_unique<FailingBackend>(std::move(parts.backend),
                                                     last ? &fail : &sound);
  };
  auto chain = StageChain::Create(spec, RandomSource(3), options);
  ASSERT_TRUE(chain.ok()) << chain.status();
  const std::vector<ChainRequest> requests = PlacementRequests(spec.vocab_size);
  auto before = RunRequests(**chain, requests, 2);
  ASSERT_TRUE(before.ok()) << before.status();
  for (int round = 0; round < 2; ++round) {
    fail = true;
    const auto failed = RunRequests(**chain, requests, 2, 100);
    EXPECT_TRUE(absl::IsDataLoss(failed.status())) << failed.status();
    EXPECT_THAT(failed.status().message(),
                testing::HasSubstr("a weight is not what it was"));
    EXPECT_THAT(failed.status().message(), testing::HasSubstr(" of 3: "));
    fail = false;
    (*chain)->Reset();
    const auto after = RunRequests(**chain, requests, 2, 200);
    ASSERT_TRUE(after.ok()) << after.status();
    EXPECT_EQ(*after, *before);
    (*chain)->Reset();
  }
}

TEST(StageRanksFailureTest, TooLittleMemoryIsSaid) {
  const DecoderSpec spec = LlamaSpec(2, 96, 6, 2, 200, 301);
  StageChain::Options options;
  options.ranks = 2;
  options.budget_bytes = uint64_t{1} << 20;
  const auto chain = StageChain::Create(spec, RandomSource(3), options);
  EXPECT_TRUE(absl::IsResourceExhausted(chain.status())) << chain.status();
  EXPECT_THAT(chain.status().message(), testing::HasSubstr("--host-memory"));
}

TEST(StageRanksBudgetTest, RanksShareTheStagesMemory) {
  const DecoderSpec spec = LlamaSpec(2, 96, 6, 2, 200, 301);
  uint64_t one = 0;
  for (const int ranks : {1, 2, 4}) {
    StageChain::Options options;
    options.ranks = ranks;
    auto chain = StageChain::Create(spec, RandomSource(3), options);
    ASSERT_TRUE(chain.ok()) << chain.status();
    const MemoryBudget& budget = (*chain)->budget(0);
    EXPECT_GT(budget.used_bytes(), 0u);
    const RealisedPlacement& placement = (*chain)->stage(0).placement();
    EXPECT_EQ(placement.weight_host_bytes, placement.weight_bytes);
    if (ranks == 1) one = placement.weight_bytes;
    // Parts of small matrices are filled up; norms are on all ranks.
    EXPECT_GE(placement.weight_bytes, one);
    EXPECT_LE(placement.weight_bytes, 2 * one);
  }
}

// What placement says of each rank is what it takes, to the byte.
TEST(StageRanksBudgetTest, RanksTakeWhatTheirPlacementSays) {
  for (const bool opt : {false, true}) {
    const DecoderSpec spec = PlacementSpec(opt);
    for (const int32_t count : {2, 3, 4}) {
      StageOptions options;
      options.layers = {0, spec.num_layers};
      options.policy = With("w=0/100/0 c=0/100/0");
      options.max_model_len = 100;
      options.max_sequences = 8;
      options.ranks.resize(count);
      uint64_t peak = 0, held = 0;
      MemoryBudget none(Tier::kHost, 0);
      options.host_budget = &none;
      for (int32_t rank = 0; rank < count; ++rank) {
        const StageSizes sizes(options.ShapeOf(spec, {rank, count}));
        const StagePlacement placement =
            Place(sizes, options.policy, {0, uint64_t{1} << 40, 0});
        peak += placement.use(Tier::kHost).peak_bytes();
        held += placement.use(Tier::kHost).held_bytes();
      }
      MemoryBudget budget(Tier::kHost, peak);
      options.host_budget = &budget;
      const RandomSource source(3);
      {
        const auto stage = LoadStage(spec, source, options, nullptr, nullptr);
        ASSERT_TRUE(stage.ok()) << stage.status();
        EXPECT_EQ(budget.used_bytes(), held);
      }
      EXPECT_EQ(budget.used_bytes(), 0u);
      MemoryBudget less(Tier::kHost, peak - count * 4096);
      options.host_budget = &less;
      EXPECT_TRUE(absl::IsResourceExhausted(
          LoadStage(spec, source, options, nullptr, nullptr).status()));
    }
  }
}

TEST(StageRanksFailureTest, LoadingIsTold) {
  const DecoderSpec spec = LlamaSpec(2, 96, 6, 2, 200, 301);
  MemoryBudget budget(Tier::kHost, uint64_t{1} << 30);
  StageOptions options;
  options.layers = {0, spec.num_layers};
  options.max_model_len = 100;
  options.max_sequences = 8;
  options.ranks.resize(2);
  options.host_budget = &budget;
  const RandomSource source(3);
  std::atomic<bool> cancelled{false};
  uint64_t last = 0, total = 0;
  const auto loaded = LoadStage(
      spec, source, options,
      [&](uint64_t done, uint64_t of) { last = done, total = of; }, &cancelled);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(last, total);
  EXPECT_EQ(total, (*loaded)->weight_bytes());
  options.policy.max_step_tokens = 0;
  EXPECT_TRUE(absl::IsInvalidArgument(
      LoadStage(spec, source, options, nullptr, &cancelled).status()));
}

}  // namespace
}  // namespace sluice
