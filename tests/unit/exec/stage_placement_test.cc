// Wherever weights, KV cache and activations lie, and in whatever order a block
// is computed, the tokens and logits are the same bits as with all in memory.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "runtime/exec/stage_loader.h"
#include "tests/parity/random_source.h"
#include "tests/parity/stage_chain.h"
#include "tests/support/temp_dir.h"
#include "tests/unit/exec/placement_testing.h"

namespace sluice {
namespace {

struct Case {
  const char* policy;
  bool weights_move = false;
  bool kv_moves = false;
  bool activations_move = false;
};

class StagePlacementTest : public testing::TestWithParam<int> {};

TEST_P(StagePlacementTest, SameBitsWhereverThingsLie) {
  const DecoderSpec spec = PlacementSpec(GetParam());
  TempDir dir = TempDir::OnDisk();
  Policy base;
  base.max_step_tokens = 256;
  base.num_microbatches = 2;
  Outcome expected;
  RunPlacement(spec, {.policy = base}, &expected);
  ASSERT_FALSE(HasFatalFailure());
  for (const Case& c : std::vector<Case>{
           {"w=0/100/0 c=0/100/0"},
           {"w=100/0/0 c=100/0/0"},
           {"w=0/0/100", true},
           {"w=0/50/50", true},
           {"w=30/20/50 c=0/100/0", true},
           {"w=0/90/10", true},
           {"w=0/1/99", true},
           {"c=0/0/100", false, true},
           {"c=0/50/50", false, true},
           {"c=25/25/50 w=10/10/80", true, true},
           {"w=0/0/100 c=0/0/100", true, true},
           {"w=0/0/100 c=0/0/100 overlap=off", true, true},
           {"w=0/40/60 overlap=off", true},
           {"w=0/0/100 c=0/0/100 schedule=row", true, true},
           {"w=0/70/30 c=0/30/70 schedule=row", true, true},
           {"schedule=row"},
           {"packing=off"},
           {"packing=off w=0/50/50 num-microbatches=5", true},
           {"w=0/0/100 num-microbatches=1", true},
           {"w=0/50/50 c=0/0/100 num-microbatches=1", true, true},
           {"w=0/0/100 num-microbatches=5 c=0/10/90", true, true},
           {"w=0/25/75 num-microbatches=5", true},
           {"c=0/0/100 num-microbatches=5 schedule=row", false, true},
           {"h=0/0/100", false, false, true},
           {"h=0/50/50", false, false, true},
           {"h=0/0/100 num-microbatches=5", false, false, true},
           {"h=0/30/70 num-microbatches=5 w=0/50/50 c=0/50/50", true, true,
            true},
           {"h=20/20/60 num-microbatches=4 w=0/0/100 c=0/0/100", true, true,
            true},
           {"h=0/0/100 num-microbatches=3 overlap=off", false, false, true},
           {"h=0/0/100 num-microbatches=4 schedule=row w=0/0/100", true, false,
            true},
           // Alone, a micro-batch stays in memory.
           {"h=0/0/100 num-microbatches=1"},
       }) {
    SCOPED_TRACE(c.policy);
    Policy policy = base;
    ASSERT_TRUE(UpdatePolicy(c.policy, &policy).ok());
    for (const std::vector<int>& cuts :
         {std::vector<int>{}, std::vector<int>{1, 3}}) {
      Outcome run;
      RunPlacement(
          spec, {.policy = policy, .disk_dir = dir.path(), .cuts = cuts}, &run);
      ASSERT_FALSE(HasFatalFailure());
      EXPECT_TRUE(run.tokens == expected.tokens);
      EXPECT_TRUE(run.logits == expected.logits);
      // It really went over the disk.
      EXPECT_EQ(run.stats.disk_read_bytes > 0,
                c.weights_move || c.kv_moves || c.activations_move);
      EXPECT_EQ(run.stats.disk_write_bytes > 0,
                c.kv_moves || c.activations_move);
      EXPECT_EQ(run.stats.activation_write_bytes > 0, c.activations_move);
      EXPECT_EQ(run.stats.activation_read_bytes,
                run.stats.activation_write_bytes);
    }
  }
}

TEST_P(StagePlacementTest, SharesAreRealisedToAPercent) {
  const DecoderSpec spec = PlacementSpec(GetParam());
  TempDir dir = TempDir::OnDisk();
  for (const double disk : {0.0, 0.1, 0.25, 0.5, 0.9, 1.0}) {
    Policy policy;
    policy.max_step_tokens = 1024;
    policy.num_microbatches = 3;
    policy.automatic_weights = policy.automatic_kv_cache = false;
    policy.weights = policy.activations = {0, 1 - disk, disk};
    policy.kv_cache = {0, 1, 0};
    Outcome run;
    RunPlacement(spec, {.policy = policy, .disk_dir = dir.path()}, &run);
    ASSERT_FALSE(HasFatalFailure());
    const RealisedPlacement& p = run.placement;
    EXPECT_NEAR(
        static_cast<double>(p.weight_host_bytes - p.embedding_host_bytes) /
            static_cast<double>(p.weight_bytes - p.embedding_bytes),
        1 - disk, 0.01);
    EXPECT_EQ(p.activation_bytes, sizeof(float) * 3 * 1024 *
                                      static_cast<uint64_t>(spec.hidden_size));
    EXPECT_NEAR(static_cast<double>(p.activation_host_bytes) /
                    static_cast<double>(p.activation_bytes),
                1 - disk, 0.01);
  }
}

// A step that ends early, with activations on their way to and from the disk,
// disturbs none after the reset.
TEST_P(StagePlacementTest, AStepThatBreaksOffLeavesNoActivations) {
  const DecoderSpec spec = PlacementSpec(GetParam());
  TempDir dir = TempDir::OnDisk();
  MemoryBudget memory(Tier::kHost, uint64_t{1} << 30);
  MemoryBudget disk(Tier::kDisk, uint64_t{1} << 30);
  constexpr int kBatches = 4;
  StepPlan plan;
  for (int k = 0; k < kBatches; ++k) {
    const SequenceId id(k);
    plan.admit.push_back({id, 50, 60, {}});
    plan.micro_batches.push_back({{{id, 0, 50, false}}, {}});
    for (int i = 0; i < 50; ++i) {
      plan.micro_batches.back().tokens.push_back((i * 7 + k) % spec.vocab_size);
    }
  }
  const auto load = [&](const char* policy) {
    StageOptions options;
    options.layers = {0, 3};
    EXPECT_TRUE(UpdatePolicy(policy, &options.policy).ok());
    options.policy.max_step_tokens = 64;
    options.policy.num_microbatches = kBatches;
    options.max_model_len = 200;
    options.max_sequences = kBatches;
    options.host_budget = &memory;
    options.disk_budget = &disk;
    options.disk_dir = dir.path();
    auto stage = LoadStage(spec, RandomSource(3), options, nullptr, nullptr);
    EXPECT_TRUE(stage.ok()) << stage.status();
    return *std::move(stage);
  };
  // What the stage gives on, up to micro-batch `end`.
  const auto run = [&](StageExecutor& stage, int end) {
    std::vector<std::vector<float>> out;
    const absl::Status status = stage.RunStep(
        plan, {},
        [&](int32_t k, const std::shared_ptr<ActivationBuffer>& x) {
          if (k == end) return absl::AbortedError("nobody listens");
          out.emplace_back(x->data(), x->data() + x->rows() * x->cols());
          return absl::OkStatus();
        },
        nullptr);
    EXPECT_EQ(absl::IsAborted(status), end < kBatches) << status;
    return out;
  };
  const auto expected = run(*load("h=0/100/0"), kBatches);
  for (const char* policy : {"h=0/0/100", "h=0/50/50 schedule=row"}) {
    const auto stage = load(policy);
    for (const int end : {0, 1, 2, 3}) {
      run(*stage, end);
      stage->Reset();
      EXPECT_TRUE(run(*stage, kBatches) == expected) << policy << " " << end;
      stage->Reset();
    }
  }
}

// Each segment would have a copy of the pages of its own.
TEST_P(StagePlacementTest, TwoChunksOfASequenceOnDiskAreRefused) {
  const DecoderSpec spec = PlacementSpec(GetParam());
  TempDir dir = TempDir::OnDisk();
  MemoryBudget memory(Tier::kHost, uint64_t{1} << 30);
  MemoryBudget disk(Tier::kDisk, uint64_t{1} << 30);
  StageOptions options;
  options.layers = {0, spec.num_layers};
  ASSERT_TRUE(UpdatePolicy("c=0/0/100", &options.policy).ok());
  options.policy.max_step_tokens = 64;
  options.max_model_len = 200;
  options.max_sequences = 2;
  options.host_budget = &memory;
  options.disk_budget = &disk;
  options.disk_dir = dir.path();
  auto stage = LoadStage(spec, RandomSource(3), options, nullptr, nullptr);
  ASSERT_TRUE(stage.ok()) << stage.status();
  const MicroBatch begin = {{{SequenceId(1), 0, 2, false}}, {1, 2}};
  const MicroBatch end = {{{SequenceId(1), 2, 1, true}}, {3}};
  StepPlan plan;
  plan.admit = {{SequenceId(1), 3, 10, {}}};
  StepResult result;
  for (const bool together : {false, true}) {
    (*stage)->Reset();
    plan.micro_batches = {begin, end};
    if (together) {
      plan.micro_batches = {{{begin.segments[0], end.segments[0]}, {1, 2, 3}}};
    }
    const absl::Status status = (*stage)->RunStep(plan, {}, nullptr, &result);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_NE(status.message().find("two segments"), std::string::npos)
        << status;
  }
  (*stage)->Reset();
  plan.micro_batches = {begin};
  EXPECT_TRUE((*stage)->RunStep(plan, {}, nullptr, &result).ok());
}

// All packed units below a directory.
std::vector<std::filesystem::path> PackedFiles(const std::string& dir) {
  std::vector<std::filesystem::path> packed_files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(dir)) {
    if (entry.path().extension() == ".img")
      packed_files.push_back(entry.path());
  }
  return packed_files;
}

TEST_P(StagePlacementTest, ImagesAreReusedAndDamagedOnesMadeAnew) {
  const DecoderSpec spec = PlacementSpec(GetParam());
  TempDir dir = TempDir::OnDisk();
  StageChain::Options options;
  options.policy.max_step_tokens = 256;
  ASSERT_TRUE(UpdatePolicy("w=0/50/50", &options.policy).ok());
  options.disk_dir = dir.path();
  options.max_model_len = 200;
  const auto run = [&]() -> absl::StatusOr<std::vector<std::vector<int32_t>>> {
    auto chain = StageChain::Create(spec, RandomSource(3), options);
    if (!chain.ok()) return chain.status();
    return RunRequests(**chain, PlacementRequests(spec.vocab_size), 1);
  };
  const auto expected = run();
  ASSERT_TRUE(expected.ok()) << expected.status();
  const auto packed_files = PackedFiles(dir.path());
  ASSERT_EQ(packed_files.size(), 5u);  // four layers and the head
  std::map<std::string, std::filesystem::file_time_type> times;
  for (const auto& packed : packed_files) {
    times[packed] = std::filesystem::last_write_time(packed);
  }
  EXPECT_EQ(*run(), *expected);
  for (const auto& packed : packed_files) {
    EXPECT_EQ(std::filesystem::last_write_time(packed), times[packed]);
  }

  const auto flip = [&](const std::filesystem::path& path, double where) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    const auto at = static_cast<std::streamoff>(
        where * static_cast<double>(std::filesystem::file_size(path) - 1));
    file.seekg(at);
    const int byte = file.get();
    file.seekp(at);
    file.put(static_cast<char>(byte ^ 1));
  };
  // In the header, and in what stays in memory: made anew at once.
  flip(packed_files[0], 0);
  flip(packed_files[1], 4200.0 / static_cast<double>(std::filesystem::file_size(
                                     packed_files[1])));
  EXPECT_EQ(*run(), *expected);
  // In what is streamed: found when it first comes. The run after it is well.
  flip(packed_files[2], 0.99);
  const auto damaged = run();
  EXPECT_TRUE(absl::IsDataLoss(damaged.status())) << damaged.status();
  EXPECT_NE(damaged.status().message().find(packed_files[2].string()),
            std::string::npos)
      << damaged.status();
  EXPECT_EQ(*run(), *expected);
  // Every time that it comes, not only the first.
  auto chain = StageChain::Create(spec, RandomSource(3), options);
  ASSERT_TRUE(chain.ok()) << chain.status();
  const auto requests = PlacementRequests(spec.vocab_size);
  const auto before = RunRequests(**chain, requests, 1);
  ASSERT_TRUE(before.ok()) << before.status();
  EXPECT_EQ(*before, *expected);
  flip(packed_files[2], 0.99);
  EXPECT_TRUE(absl::IsDataLoss(RunRequests(**chain, requests, 1).status()));
  EXPECT_EQ(*run(), *expected);
  // Other weights are other packed units.
  auto other = StageChain::Create(spec, RandomSource(4), options);
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_EQ(PackedFiles(dir.path()).size(), 10u);
}

TEST_P(StagePlacementTest, TooLittleDiskIsRefusedBeforeLoading) {
  const DecoderSpec spec = PlacementSpec(GetParam());
  TempDir dir = TempDir::OnDisk();
  for (const char* text :
       {"w=0/0/100", "c=0/0/100", "h=0/0/100 num-microbatches=8"}) {
    StageChain::Options options;
    ASSERT_TRUE(UpdatePolicy(text, &options.policy).ok());
    options.policy.max_step_tokens = 256;
    options.disk_dir = dir.path();
    options.disk_bytes = 100'000;
    options.max_model_len = 200;
    auto chain = StageChain::Create(spec, RandomSource(3), options);
    EXPECT_TRUE(absl::IsResourceExhausted(chain.status())) << chain.status();
    EXPECT_NE(chain.status().message().find("--disk-space"), std::string::npos)
        << chain.status();
    EXPECT_TRUE(PackedFiles(dir.path()).empty());
  }
  StageChain::Options options;
  ASSERT_TRUE(UpdatePolicy("w=0/0/100", &options.policy).ok());
  options.max_model_len = 200;
  auto none = StageChain::Create(spec, RandomSource(3), options);
  EXPECT_TRUE(absl::IsInvalidArgument(none.status())) << none.status();
  options.disk_dir = "/proc/nowhere/to/write";
  auto unwritable = StageChain::Create(spec, RandomSource(3), options);
  EXPECT_FALSE(unwritable.ok());
  EXPECT_NE(unwritable.status().message().find("/proc/nowhere"),
            std::string::npos)
      << unwritable.status();
}

// As much as fits stays in memory, the rest comes from disk, in any budget.
TEST_P(StagePlacementTest, AutomaticPlacementUsesWhatIsThere) {
  const DecoderSpec spec = PlacementSpec(GetParam());
  TempDir dir = TempDir::OnDisk();
  StageChain::Options options;
  options.policy.max_step_tokens = 256;
  options.max_model_len = 200;
  options.max_sequences = 12;
  auto roomy = StageChain::Create(spec, RandomSource(3), options);
  ASSERT_TRUE(roomy.ok()) << roomy.status();
  const auto expected =
      RunRequests(**roomy, PlacementRequests(spec.vocab_size), 1);
  const uint64_t all = (*roomy)->budget(0).used_bytes();
  const uint64_t weights = (*roomy)->stage(0).weight_bytes();
  options.disk_dir = dir.path();
  uint64_t last_resident = 0;
  for (const double share : {0.4, 0.6, 0.8, 1.0}) {
    options.budget_bytes =
        all - static_cast<uint64_t>((1 - share) * static_cast<double>(weights));
    auto chain = StageChain::Create(spec, RandomSource(3), options);
    ASSERT_TRUE(chain.ok()) << share << ": " << chain.status();
    const auto tokens =
        RunRequests(**chain, PlacementRequests(spec.vocab_size), 1);
    ASSERT_TRUE(tokens.ok()) << tokens.status();
    EXPECT_EQ(*tokens, *expected);
    EXPECT_LE((*chain)->budget(0).peak_bytes(), options.budget_bytes);
    const uint64_t resident = (*chain)->stage(0).placement().weight_host_bytes;
    EXPECT_GE(resident, last_resident);
    last_resident = resident;
  }
  EXPECT_EQ(last_resident, weights);
}

// A device gets a mixture's core and experts one by one; those that no row
// takes are passed by.
TEST(StagePlacement, MixturesOnADeviceHaveTheSameBits) {
  DecoderSpec spec = MixtureOfExperts(4, RouterKind::kSoftmax);
  spec.mixture.experts = 20;
  TempDir dir = TempDir::OnDisk();
  Outcome expected;
  RunPlacement(spec, {.policy = With("w=0/100/0")}, &expected);
  ASSERT_FALSE(testing::Test::HasFatalFailure());
  for (const char* const keys :
       {"w=100/0/0", "w=0/100/0", "w=20/30/50", "w=0/0/100 overlap=off",
        "w=10/40/50 h=0/0/100 num-microbatches=3", "w=0/50/50 schedule=row"}) {
    SCOPED_TRACE(keys);
    Outcome run;
    RunPlacement(spec,
                 {.policy = With(keys),
                  .disk_dir = dir.path(),
                  .cuts = {2},
                  .device_bytes = uint64_t{256} << 20},
                 &run);
    ASSERT_FALSE(testing::Test::HasFatalFailure());
    EXPECT_EQ(run.tokens, expected.tokens);
    EXPECT_EQ(run.logits, expected.logits);
  }
}

// A row takes a few experts of each layer: no others are read.
TEST(StagePlacement, OnlyExpertsThatARowTakesAreRead) {
  DecoderSpec spec = MixtureOfExperts(2, RouterKind::kSoftmax);
  spec.mixture.experts = 40;
  spec.mixture.experts_per_token = 2;
  for (LayerSpec& layer : spec.layers) layer.mixture = true;
  TempDir dir = TempDir::OnDisk();
  StageChain::Options options;
  options.disk_dir = dir.path().string();
  options.policy = With("w=0/0/100 num-microbatches=1");
  auto chain = StageChain::Create(spec, RandomSource(3), options);
  ASSERT_TRUE(chain.ok()) << chain.status();
  const auto read = [&](std::vector<int32_t> prompt, int tokens, int64_t id) {
    const uint64_t before = (*chain)->stage(0).stats().disk_read_bytes;
    ChainRequest request;
    request.prompt = std::move(prompt);
    request.new_tokens = tokens;
    EXPECT_TRUE(RunRequests(**chain, {request}, 1, id).ok());
    return (*chain)->stage(0).stats().disk_read_bytes - before;
  };
  std::vector<int32_t> all(200);
  for (int i = 0; i < 200; ++i) all[i] = i % spec.vocab_size;
  const uint64_t whole = read(all, 1, 0);  // most experts have rows
  const uint64_t four_steps = read({1}, 4, 1);
  EXPECT_LT(four_steps, whole);
  EXPECT_GT(four_steps, whole / 10);
}

INSTANTIATE_TEST_SUITE_P(Models, StagePlacementTest,
                         testing::Range(0, kPlacementModels),
                         [](const auto& info) {
                           return PlacementName(info.param);
                         });

}  // namespace
}  // namespace sluice
