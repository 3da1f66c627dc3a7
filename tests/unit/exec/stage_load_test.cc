#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <vector>

#include "common/status_macros.h"
#include "runtime/exec/stage_loader.h"
#include "runtime/kernels/device_choice.h"
#include "runtime/model/checkpoint/dummy_source.h"
#include "tests/parity/random_source.h"
#include "tests/support/temp_dir.h"

namespace sluice {
namespace {

class StageLoadTest : public testing::Test {
 protected:
  StageLoadTest() {
    options_.layers = {0, 4};
    options_.max_model_len = 100;
    options_.max_sequences = 10;
    options_.host_budget = &budget_;
    options_.policy.max_step_tokens = 128;
  }

  absl::StatusOr<std::unique_ptr<StageExecutor>> Load() {
    return LoadStage(spec_, RandomSource(), options_, nullptr, nullptr);
  }

  DecoderSpec spec_ = LlamaSpec(4, 64, 4, 2, 128, 100);
  MemoryBudget budget_{Tier::kHost, uint64_t{1} << 30};
  StageOptions options_;
};

TEST_F(StageLoadTest, ChargesAllByName) {
  {
    auto stage = Load();
    ASSERT_TRUE(stage.ok()) << stage.status();
    const auto holders = budget_.holders();
    for (const char* name :
         {"embedding", "weights layer 0", "weights layer 3", "head", "kv cache",
          "workspace", "rotary table", "activations"}) {
      EXPECT_TRUE(holders.contains(name)) << name;
    }
    uint64_t weights = 0;
    for (const auto& [name, bytes] : holders) {
      if (name == "embedding" || name == "head" ||
          name.substr(0, 7) == "weights") {
        weights += bytes;
      }
    }
    EXPECT_EQ((*stage)->weight_bytes(), weights);
    // 4 pages of 32 positions for each of 10 sequences.
    EXPECT_EQ((*stage)->kv_pages(), 40);
    EXPECT_EQ((*stage)->kv_pages_used(), 0);
    EXPECT_EQ((*stage)->page_tokens(), 32);
  }
  EXPECT_EQ(budget_.used_bytes(), 0u);
}

TEST_F(StageLoadTest, StagesHoldOnlyTheirShare) {
  for (const auto& [layers, first, last] :
       std::vector<std::tuple<LayerRange, bool, bool>>{{{0, 1}, true, false},
                                                       {{1, 3}, false, false},
                                                       {{3, 4}, false, true}}) {
    options_.layers = layers;
    auto stage = Load();
    ASSERT_TRUE(stage.ok()) << stage.status();
    EXPECT_EQ((*stage)->is_first(), first);
    EXPECT_EQ((*stage)->is_last(), last);
    const auto holders = budget_.holders();
    EXPECT_EQ(holders.contains("embedding"), first);
    EXPECT_EQ(holders.contains("head"), last);
    EXPECT_FALSE(
        holders.contains("weights layer " + std::to_string(layers.end)));
  }
}

// On each side with a neighbour wait the frames of two steps, four at least.
TEST_F(StageLoadTest, LinksCountAgainstTheBudget) {
  for (const auto& [micro_batches, frames] :
       std::vector<std::pair<int32_t, uint64_t>>{{1, 4}, {3, 6}}) {
    options_.policy.num_microbatches = micro_batches;
    const uint64_t side = frames * sizeof(float) * spec_.hidden_size *
                          options_.policy.max_step_tokens;
    for (const auto& [layers, bytes] :
         std::vector<std::pair<LayerRange, uint64_t>>{
             {{0, 1}, side}, {{1, 3}, 2 * side}, {{3, 4}, side}, {{0, 4}, 0}}) {
      options_.layers = layers;
      auto stage = Load();
      ASSERT_TRUE(stage.ok()) << stage.status();
      const auto holders = budget_.holders();
      const auto links = holders.find("link buffers");
      EXPECT_EQ(links == holders.end() ? 0 : links->second, bytes);
    }
  }
}

TEST_F(StageLoadTest, ProgressAddsUp) {
  uint64_t last = 0, total = 0;
  auto stage = LoadStage(
      spec_, RandomSource(), options_,
      [&](uint64_t done, uint64_t all) {
        EXPECT_GE(done, last);
        last = done;
        total = all;
      },
      nullptr);
  ASSERT_TRUE(stage.ok()) << stage.status();
  EXPECT_EQ(last, total);
  EXPECT_EQ(total, (*stage)->weight_bytes());
}

TEST_F(StageLoadTest, Cancels) {
  std::atomic<bool> cancelled{false};
  auto stage = LoadStage(
      spec_, RandomSource(), options_,
      [&](uint64_t done, uint64_t all) {
        if (done > all / 2) cancelled = true;
      },
      &cancelled);
  EXPECT_TRUE(absl::IsCancelled(stage.status())) << stage.status();
  EXPECT_EQ(budget_.used_bytes(), 0u);
}

// Files whose content is not known yet take four reads to hash.
class UnhashedSource final : public RandomSource {
 public:
  absl::StatusOr<std::string> ContentId(const std::string& cache_file,
                                        Progress progress) const override {
    for (int i = 0; i < 4; ++i) {
      ++reads_;
      if (on_read) on_read();
      SLUICE_RETURN_IF_ERROR(progress(1));
    }
    return "hashed";
  }
  int reads() const { return reads_; }

  std::function<void()> on_read;

 private:
  mutable int reads_ = 0;
};

TEST_F(StageLoadTest, HashingTheFilesIsWorkThatCanBeCancelled) {
  TempDir dir = TempDir::OnDisk();
  MemoryBudget disk(Tier::kDisk, uint64_t{1} << 30);
  WorkMarks marks;
  options_.disk_dir = dir.path();
  options_.disk_budget = &disk;
  options_.policy.automatic_weights = false;
  options_.policy.weights = {.device = 0, .host = 0, .disk = 1};
  options_.marks = &marks;
  std::vector<uint64_t> counts;
  UnhashedSource source;
  source.on_read = [&] { counts.push_back(marks.count()); };
  auto stage = LoadStage(spec_, source, options_, nullptr, nullptr);
  ASSERT_TRUE(stage.ok()) << stage.status();
  ASSERT_GE(counts.size(), 4u);
  for (size_t i = 1; i < 4; ++i) EXPECT_GT(counts[i], counts[i - 1]) << i;

  std::atomic<bool> cancelled{false};
  UnhashedSource other;
  other.on_read = [&] { cancelled = true; };
  stage = LoadStage(spec_, other, options_, nullptr, &cancelled);
  EXPECT_TRUE(absl::IsCancelled(stage.status())) << stage.status();
  EXPECT_EQ(other.reads(), 1);
}

TEST_F(StageLoadTest, WeightsThatDoNotFitAreRefusedBeforeReading) {
  MemoryBudget small(Tier::kHost, 600'000);
  options_.host_budget = &small;
  uint64_t read = 0;
  auto stage = LoadStage(
      spec_, RandomSource(), options_,
      [&](uint64_t done, uint64_t) { read = done; }, nullptr);
  EXPECT_TRUE(absl::IsResourceExhausted(stage.status())) << stage.status();
  EXPECT_NE(stage.status().message().find("weights"), std::string::npos)
      << stage.status();
  EXPECT_EQ(read, 0u);
  EXPECT_EQ(small.used_bytes(), 0u);
}

TEST_F(StageLoadTest, KvCacheTakesWhatIsLeft) {
  uint64_t without_kv = 0;
  uint64_t page = 0;
  {
    auto stage = Load();
    ASSERT_TRUE(stage.ok()) << stage.status();
    const uint64_t kv = budget_.holders().at("kv cache");
    without_kv = budget_.used_bytes() - kv;
    page = kv / 40;
  }
  {
    MemoryBudget tight(Tier::kHost, without_kv + 10 * page);
    options_.host_budget = &tight;
    auto stage = Load();
    ASSERT_TRUE(stage.ok()) << stage.status();
    EXPECT_GE((*stage)->kv_pages(), 8);
    EXPECT_LT((*stage)->kv_pages(), 11);
  }
  {
    MemoryBudget tight(Tier::kHost, without_kv + 3 * page);
    options_.host_budget = &tight;
    auto stage = Load();
    EXPECT_TRUE(absl::IsResourceExhausted(stage.status())) << stage.status();
    for (const char* part :
         {"one sequence of the greatest length", "weights in memory",
          "kv cache", "workspace", "embedding"}) {
      EXPECT_NE(stage.status().message().find(part), std::string::npos)
          << part << ": " << stage.status();
    }
  }
}

TEST_F(StageLoadTest, HasKvForSequencesAsLongAsAPlanCounts) {
  options_.kv_positions = 40;
  for (const bool named : {false, true}) {
    options_.policy.automatic_kv_cache = !named;
    options_.policy.kv_cache = {0, 1, 0};
    auto stage = Load();
    ASSERT_TRUE(stage.ok()) << stage.status();
    // 2 pages of 32 positions for each of 10 sequences.
    EXPECT_EQ((*stage)->kv_pages(), 20);
  }
}

TEST_F(StageLoadTest, RefusesBadOptions) {
  const auto bad = [&](auto change) {
    StageOptions options = options_;
    change(options);
    return LoadStage(spec_, RandomSource(), options, nullptr, nullptr).status();
  };
  using O = StageOptions;
  EXPECT_TRUE(absl::IsInvalidArgument(bad([](O& o) { o.layers = {2, 2}; })));
  EXPECT_TRUE(absl::IsInvalidArgument(bad([](O& o) { o.layers = {-1, 2}; })));
  EXPECT_TRUE(absl::IsInvalidArgument(bad([](O& o) { o.layers = {0, 5}; })));
  EXPECT_TRUE(absl::IsInvalidArgument(bad([](O& o) { o.max_model_len = 0; })));
  EXPECT_TRUE(absl::IsInvalidArgument(bad([](O& o) { o.kv_positions = -1; })));
  EXPECT_TRUE(absl::IsInvalidArgument(bad([](O& o) { o.kv_positions = 101; })));
  EXPECT_TRUE(absl::IsInvalidArgument(bad([](O& o) { o.max_sequences = 0; })));
  EXPECT_TRUE(
      absl::IsInvalidArgument(bad([](O& o) { o.compute_threads = 0; })));
  EXPECT_TRUE(
      absl::IsInvalidArgument(bad([](O& o) { o.host_budget = nullptr; })));
  EXPECT_TRUE(absl::IsInvalidArgument(bad([](O& o) { o.policy.gbs = 0; })));
  EXPECT_TRUE(
      absl::IsInvalidArgument(bad([](O& o) { o.policy.max_step_tokens = 0; })));
  EXPECT_TRUE(absl::IsInvalidArgument(bad([](O& o) {
    o.policy.weights = {0, 0.5, 0.5};
  })));
  spec_.positions = PositionKind::kLearned;
  spec_.rotaries.clear();
  spec_.max_positions = 50;
  EXPECT_TRUE(absl::IsInvalidArgument(bad([](O&) {})));
}

// Fails for one tensor, in Check or in ReadRows.
class BrokenSource : public RandomSource {
 public:
  BrokenSource(std::string name, bool on_check)
      : name_(std::move(name)), on_check_(on_check) {}
  absl::Status Check(const TensorRef& ref) const override {
    return on_check_ && ref.name == name_ ? absl::NotFoundError(name_)
                                          : absl::OkStatus();
  }
  absl::Status ReadRows(const TensorRef& ref, int64_t begin, int64_t end,
                        float* out) const override {
    if (!on_check_ && ref.name == name_) return absl::DataLossError(name_);
    return RandomSource::ReadRows(ref, begin, end, out);
  }

 private:
  std::string name_;
  bool on_check_;
};

TEST_F(StageLoadTest, TensorErrorsComeThrough) {
  options_.compute_threads = 2;
  std::vector<TensorRef> tensors = EmbeddingTensors(spec_);
  for (const TensorRef& t : LayerTensors(spec_, 2)) tensors.push_back(t);
  for (const TensorRef& t : HeadTensors(spec_)) tensors.push_back(t);
  for (const TensorRef& t : tensors) {
    const auto missing = LoadStage(spec_, BrokenSource(t.name, true), options_,
                                   nullptr, nullptr);
    EXPECT_TRUE(absl::IsNotFound(missing.status())) << missing.status();
    const auto broken = LoadStage(spec_, BrokenSource(t.name, false), options_,
                                  nullptr, nullptr);
    EXPECT_TRUE(absl::IsDataLoss(broken.status())) << broken.status();
    EXPECT_NE(broken.status().message().find(t.name), std::string::npos);
  }
  // Other stages do not care.
  options_.layers = {0, 2};
  EXPECT_TRUE(LoadStage(spec_,
                        BrokenSource(LayerTensors(spec_, 2)[0].name, true),
                        options_, nullptr, nullptr)
                  .ok());
  EXPECT_EQ(budget_.used_bytes(), 0u);
}

TEST_F(StageLoadTest, TheCpuSaysWhatToComputeInInsteadOfFloat16) {
  MemoryBudget device(Tier::kDevice, 1 << 26);
  options_.policy.dtype = DType::kFloat16;
  for (const BackendKind kind :
       {BackendKind::kCpu, BackendKind::kCpuDiscrete}) {
    options_.device = {kind};
    options_.device_budget = kind == BackendKind::kCpu ? nullptr : &device;
    const absl::Status status =
        LoadStage(spec_, DummySource(), options_, nullptr, nullptr).status();
    EXPECT_TRUE(absl::IsUnimplemented(status)) << status;
    EXPECT_NE(status.message().find("--dtype bfloat16"), std::string::npos);
  }
}

TEST_F(StageLoadTest, AGpuThatIsNotHereIsRefused) {
  MemoryBudget device(Tier::kDevice, 1 << 20);
  options_.device = {BackendKind::kCuda, 999};
  options_.device_budget = &device;
  const absl::Status status =
      LoadStage(spec_, DummySource(), options_, nullptr, nullptr).status();
  EXPECT_TRUE(absl::IsUnimplemented(status) ||
              absl::IsFailedPrecondition(status))
      << status;
  EXPECT_NE(status.message().find("--device cuda:999"), std::string::npos);
}

}  // namespace
}  // namespace sluice
