#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/exec/stage_loader.h"
#include "runtime/kernels/cpu/gemm.h"
#include "runtime/memory/compute_pool.h"
#include "runtime/model/checkpoint/dummy_source.h"
#include "runtime/placement/stage_placement.h"
#include "tests/parity/random_source.h"
#include "tests/support/temp_dir.h"

// Compares what a placement says that a stage takes with what the runtime
// charges when it loads it, to the byte: random shapes and policies, on the CPU
// and beside a device; in tests/cuda, beside a GPU, which is emulated.

namespace sluice {
namespace {

constexpr int kCases = 1000;
// The cases are dealt out in turn to so many tests.
constexpr int kShards = 8;
#ifdef SLUICE_CUDA_EMULATED
constexpr BackendKind kDevice = BackendKind::kCuda;
constexpr uint64_t kDeviceBytes = uint64_t{1} << 29;
#else
constexpr BackendKind kDevice = BackendKind::kCpuDiscrete;
constexpr uint64_t kDeviceBytes = uint64_t{1} << 32;
#endif
constexpr uint64_t kPlenty = uint64_t{1} << 32;

class Random {
 public:
  explicit Random(uint32_t seed) : random_(seed) {}
  int Any(int from, int to) {
    return from + static_cast<int>(random_() % (to - from + 1));
  }
  bool Chance(double share) {
    return static_cast<double>(random_()) < share * std::mt19937::max();
  }
  template <typename T>
  T Of(std::initializer_list<T> values) {
    return values.begin()[Any(0, static_cast<int>(values.size()) - 1)];
  }
  // Shares of tiers in hundredths; 0 for those that are not there.
  TierFractions Split(bool device, bool disk) {
    const int on_device = device ? Of({0, 0, 20, 50, 85, 100}) : 0;
    const int on_disk =
        disk ? std::min(100 - on_device, Of({0, 0, 10, 40, 70, 100})) : 0;
    return {on_device / 100.0, (100 - on_device - on_disk) / 100.0,
            on_disk / 100.0};
  }

 private:
  std::mt19937 random_;
};

// Some machines have no products in bfloat16.
bool HasBFloat16() {
  static const bool has = [] {
    ComputePool pool(1, {});
    return GemmEngine::Create(DType::kBFloat16, &pool).ok();
  }();
  return has;
}

struct Case {
  DecoderSpec spec;
  StageOptions options;  // but for budgets
  bool device = false, disk = false;
  TierLimits limits = {};
  std::string text;

  StageShape Shape() const {
    return {.model = &spec,
            .layers = options.layers,
            .policy = options.policy,
            .device = device ? kDevice : BackendKind::kCpu,
            .max_model_len = options.max_model_len,
            .max_sequences = options.max_sequences,
            .threads = options.compute_threads,
            .may_use_disk = disk && MayUseDisk(options.policy)};
  }
  StagePlacement Placed() const {
    return Place(StageSizes(Shape()), options.policy, limits);
  }
};

DecoderSpec RandomModel(Random& random) {
  const int head_dim = random.Of({16, 20, 48, 64});
  const int kv_heads = random.Any(1, 3);
  const int heads = kv_heads * random.Any(1, 2);
  const int hidden = random.Of({32, 48, 64, 100, 192});
  DecoderSpec spec =
      LlamaSpec(random.Any(1, 5), hidden, heads, kv_heads,
                random.Of({1, 3, 8}) * random.Any(8, 40), random.Any(50, 3000));
  // Sections of the head are a MiB at least.
  if (random.Chance(0.1)) spec.vocab_size = random.Any(9000, 20000);
  spec.head_dim = head_dim;
  RotarySpec& rotary = spec.rotaries.front();
  rotary.dim = head_dim;
  rotary.inv_freq.assign(head_dim / 2, 0.5F);
  if (random.Chance(0.2)) spec.qkv_bias = true;
  if (random.Chance(0.2)) spec.mlp_bias = true;
  if (random.Chance(0.4)) {
    spec.model_type = "opt";
    spec.norm = NormKind::kLayerNorm;
    spec.gated_mlp = false;
    spec.activation = Activation::kRelu;
    spec.qkv_bias = spec.out_bias = spec.mlp_bias = true;
    spec.norm_affine = random.Chance(0.8);
    spec.positions = PositionKind::kLearned;
    spec.rotaries.clear();
    spec.position_offset = 2;
    spec.max_positions = 1000;
    if (random.Chance(0.3)) spec.final_norm = false;
  }
  if (random.Chance(0.2)) spec.embed_dim = 16 * random.Any(1, 6);
  if (kDevice != BackendKind::kCuda && random.Chance(0.3)) {
    spec.mixture = {.experts = random.Any(1, 9),
                    .expert_size = random.Of({1, 3}) * random.Any(8, 40)};
    spec.mixture.experts_per_token = random.Any(1, spec.mixture.experts);
    if (random.Chance(0.5)) spec.mixture.shared_size = random.Any(8, 200);
    spec.mixture.expert_bias = random.Chance(0.3);
    spec.layers.resize(spec.num_layers);
    for (LayerSpec& layer : spec.layers) layer.mixture = random.Chance(0.7);
  }
  return spec;
}

Policy RandomPolicy(Random& random, bool device, bool disk) {
  Policy policy;
  policy.gbs = random.Any(1, 12);
  policy.num_microbatches = random.Any(1, 6);
  policy.max_step_tokens = random.Any(policy.gbs, 150);
  policy.dtype = random.Of({DType::kFloat32, DType::kBFloat16});
  if (!HasBFloat16()) policy.dtype = DType::kFloat32;
  policy.compress_weights = random.Of(
      {WeightFormat::kFull, WeightFormat::kInt8, WeightFormat::kInt4});
  policy.compress_kv = random.Of({WeightFormat::kFull, WeightFormat::kFull,
                                  WeightFormat::kInt8, WeightFormat::kInt4});
  policy.attention_site =
      random.Of({AttentionSite::kHost, AttentionSite::kDevice});
  policy.sparsity = random.Chance(0.2) ? 0.1F : 1;
  policy.overlap = random.Chance(0.8);
  policy.automatic_weights = random.Chance(0.4);
  policy.automatic_kv_cache = random.Chance(0.4);
  policy.automatic_activations = random.Chance(0.4);
  if (!policy.automatic_weights) policy.weights = random.Split(device, disk);
  if (!policy.automatic_kv_cache) policy.kv_cache = random.Split(device, disk);
  if (!policy.automatic_activations) {
    policy.activations = random.Split(device, disk && random.Chance(0.5));
  }
  return policy;
}

std::unique_ptr<Case> RandomCase(uint32_t seed) {
  Random random(seed);
  auto c = std::make_unique<Case>();
  c->spec = RandomModel(random);
  StageOptions& options = c->options;
  const int layers = c->spec.num_layers;
  options.layers.begin = random.Chance(0.6) ? 0 : random.Any(0, layers - 1);
  options.layers.end = random.Chance(0.6)
                           ? layers
                           : random.Any(options.layers.begin + 1, layers);
  c->device = random.Chance(kDevice == BackendKind::kCuda ? 1 : 0.5);
  c->disk = random.Chance(0.7);
  options.policy = RandomPolicy(random, c->device, c->disk);
  options.max_model_len = random.Any(20, 400);
  const Policy& policy = options.policy;
  options.max_sequences =
      policy.gbs * policy.num_microbatches * random.Any(1, 2);
  options.compute_threads = random.Any(1, 3);
  c->limits = {c->device ? kDeviceBytes : 0, kPlenty, c->disk ? kPlenty : 0};
  // Half of the cases get about what they take with plenty: what is automatic
  // yields, and some do not fit. A device is taken whole, so that plenty of it
  // is no more than that, either.
  const StagePlacement plenty = c->Placed();
  const bool scarce = random.Chance(0.5);
  for (const Tier tier : {Tier::kDevice, Tier::kHost, Tier::kDisk}) {
    if (!scarce && tier != Tier::kDevice) break;
    const double share =
        scarce ? random.Of({0.6, 0.9, 0.999, 1.0, 1.0, 1.001, 1.2}) : 1.5;
    uint64_t& limit = c->limits[static_cast<size_t>(tier)];
    limit = std::min(
        limit, static_cast<uint64_t>(
                   share * static_cast<double>(plenty.use(tier).peak_bytes())));
  }
  c->text = absl::StrCat(
      "case ", seed, ": ", c->spec.model_type, " hidden ", c->spec.hidden_size,
      " embed ", c->spec.embed_dim, " heads ", c->spec.num_heads, "/",
      c->spec.num_kv_heads, " x ", c->spec.head_dim, " inner ",
      c->spec.intermediate_size, " experts ", c->spec.mixture.experts, " x ",
      c->spec.mixture.expert_size, " vocab ", c->spec.vocab_size, " ",
      DTypeName(policy.dtype), " layers [", options.layers.begin, ", ",
      options.layers.end, ") of ", layers, ", ", options.max_model_len,
      " positions, ", options.max_sequences, " sequences, ",
      options.compute_threads, " threads, limits ", c->limits[0], " ",
      c->limits[1], " ", c->limits[2], ", ", PolicyText(policy));
  return c;
}

struct Budgets {
  explicit Budgets(const TierLimits& limits)
      : device(Tier::kDevice, limits[0]),
        host(Tier::kHost, limits[1]),
        disk(Tier::kDisk, limits[2]) {}
  MemoryBudget device, host, disk;
};

// Loads the stage in a directory of its own, where packed units are made anew.
absl::StatusOr<std::unique_ptr<StageExecutor>> Load(const Case& c,
                                                    const TempDir& dir,
                                                    Budgets* budgets) {
  StageOptions options = c.options;
  options.host_budget = &budgets->host;
  if (c.device) {
    options.device.backend = kDevice;
    options.device_budget = &budgets->device;
  }
  if (c.disk) {
    options.disk_budget = &budgets->disk;
    options.disk_dir = dir.path();
  }
  return LoadStage(c.spec, DummySource(), options, nullptr, nullptr);
}

class CapacityTest : public testing::TestWithParam<int> {};

TEST_P(CapacityTest, IsWhatStagesCharge) {
  int fit = 0, refused = 0;
  for (int seed = 1 + GetParam(); seed <= kCases; seed += kShards) {
    const std::unique_ptr<Case> c = RandomCase(static_cast<uint32_t>(seed));
    SCOPED_TRACE(c->text);
    const StagePlacement placed = c->Placed();
    Budgets budgets(c->limits);
    TempDir dir = TempDir::OnDisk();
    const auto stage = Load(*c, dir, &budgets);
    if (!placed.Fits(c->limits)) {
      ++refused;
      EXPECT_EQ(stage.status().code(), absl::StatusCode::kResourceExhausted)
          << stage.status();
      continue;
    }
    ++fit;
    ASSERT_TRUE(stage.ok()) << stage.status();
    for (const MemoryBudget* budget :
         {&budgets.device, &budgets.host, &budgets.disk}) {
      SCOPED_TRACE(TierName(budget->tier()));
      const TierUse& use = placed.use(budget->tier());
      EXPECT_EQ(budget->used_bytes(), use.held_bytes());
      EXPECT_EQ(budget->peak_bytes(), use.peak_bytes());
    }
  }
  EXPECT_GE(fit, kCases / kShards / 2);
  EXPECT_GE(refused, kCases / kShards / 20);
}

INSTANTIATE_TEST_SUITE_P(Shards, CapacityTest, testing::Range(0, kShards));

// A little less than a stage takes at its peak does not do, on any tier.
TEST(CapacityLimitTest, APlacementsPeakIsTheLeastThatDoes) {
  int tight = 0;
  for (uint32_t seed = 5001; seed <= 5060; ++seed) {
    const std::unique_ptr<Case> c = RandomCase(seed);
    SCOPED_TRACE(c->text);
    c->options.policy.automatic_weights = false;
    c->options.policy.automatic_kv_cache = false;
    c->options.policy.automatic_activations = false;
    c->limits = {c->device ? kDeviceBytes : 0, kPlenty, c->disk ? kPlenty : 0};
    const StagePlacement placed = c->Placed();
    for (const bool enough : {true, false}) {
      for (size_t tier = 0; tier < kNumTiers; ++tier) {
        c->limits[tier] = placed.uses[tier].peak_bytes();
      }
      const size_t tier = c->device && seed % 3 == 0 ? 0
                          : c->disk && seed % 3 == 1 ? 2
                                                     : 1;
      if (!enough && c->limits[tier]-- == 0) continue;
      // Fewer slots in less room change what is taken.
      if (c->Placed().Fits(c->limits) != enough) continue;
      ++tight;
      Budgets budgets(c->limits);
      TempDir dir = TempDir::OnDisk();
      EXPECT_EQ(Load(*c, dir, &budgets).ok(), enough);
    }
  }
  EXPECT_GE(tight, 60);
}

}  // namespace
}  // namespace sluice
