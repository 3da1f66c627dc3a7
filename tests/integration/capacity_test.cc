#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/planning/model_shape_of.h"
#include "runtime/exec/stage_loader.h"
#include "runtime/kernels/cpu/gemm.h"
#include "runtime/memory/compute_pool.h"
#include "runtime/model/checkpoint/dummy_source.h"
#include "scheduler/cost/cost_model.h"
#include "scheduler/cost/stage_bytes.h"
#include "tests/parity/random_source.h"
#include "tests/support/temp_dir.h"

// What the planner says that a stage takes, beside what the runtime charges
// when it loads it: random shapes and policies, on the CPU and beside a device;
// in tests/cuda, beside a GPU, which is emulated.

namespace sluice {
namespace {

constexpr double kSpare = 1 << 20;
constexpr double kShare = 1.05;
#ifdef SLUICE_CUDA_EMULATED
constexpr BackendKind kDevice = BackendKind::kCuda;
constexpr uint64_t kDeviceBytes = uint64_t{1} << 29;
// Of what launches may want, the planner takes the most.
constexpr double kDeviceSpare = uint64_t{48} << 20;
#else
constexpr BackendKind kDevice = BackendKind::kCpuDiscrete;
constexpr uint64_t kDeviceBytes = uint64_t{4} << 30;
constexpr double kDeviceSpare = kSpare;
#endif

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
  ModelShape shape;
  MachineProfile machine;
  StageCase stage;
  bool disk = false;
  std::string text;
};

std::unique_ptr<Case> RandomCase(uint32_t seed) {
  Random random(seed);
  auto c = std::make_unique<Case>();
  const int head_dim = random.Of({32, 48, 64, 128});
  const int kv_heads = random.Any(1, 4);
  const int heads = kv_heads * random.Any(1, 2);
  const int hidden = 64 * random.Any(2, 8);
  c->spec = LlamaSpec(random.Any(2, 7), hidden, heads, kv_heads,
                      32 * random.Any(4, 40), random.Any(1000, 12000));
  c->spec.head_dim = head_dim;
  c->spec.rotary.dim = head_dim;
  c->spec.rotary.inv_freq.assign(head_dim / 2, 0.5F);
  if (random.Chance(0.4)) {
    c->spec.model_type = "opt";
    c->spec.norm = NormKind::kLayerNorm;
    c->spec.gated_mlp = false;
    c->spec.activation = Activation::kRelu;
    c->spec.qkv_bias = c->spec.out_bias = c->spec.mlp_bias = true;
    c->spec.positions = PositionKind::kLearned;
    c->spec.position_offset = 2;
    c->spec.max_positions = 1000;
  }
  c->shape = ShapeOf(c->spec);

  StageCase& stage = c->stage;
  stage.model = &c->shape;
  stage.machine = &c->machine;
  const int layers = c->spec.num_layers;
  stage.layers.begin = random.Chance(0.6) ? 0 : random.Any(0, layers - 1);
  stage.layers.end =
      random.Chance(0.6) ? layers : random.Any(stage.layers.begin + 1, layers);
  stage.longest = random.Any(20, 900);
  stage.num_blocks = random.Any(1, 3);
  Policy& policy = stage.policy;
  policy.gbs = random.Any(1, 12);
  policy.num_microbatches = random.Any(1, 6);
  policy.max_step_tokens = random.Any(policy.gbs, 600);
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
  policy.automatic_weights = policy.automatic_kv_cache =
      policy.automatic_activations = false;
  const bool device = random.Chance(0.4);
  c->disk = random.Chance(0.7);
  policy.weights = random.Split(device, c->disk);
  policy.kv_cache = random.Split(device, c->disk);
  policy.activations = random.Split(device, c->disk && random.Chance(0.4));
  // A disk that is there and not used costs alignment that planning for it
  // does not know to be spared.
  c->disk = policy.weights.disk > 0 || policy.kv_cache.disk > 0 ||
            policy.activations.disk > 0;
  stage.may_use = SupportOf(FractionsOf(policy));

  c->machine.threads = random.Any(1, 3);
  c->machine.host_memory_bytes = uint64_t{4} << 30;
  c->machine.device_memory_bytes = device ? kDeviceBytes : 0;
  if (device && kDevice == BackendKind::kCuda) c->machine.device = "cuda:0";
  c->machine.disk_bytes = c->disk ? uint64_t{4} << 30 : 0;
  c->text = absl::StrCat(
      "case ", seed, ": ", c->spec.model_type, " hidden ", hidden, " heads ",
      heads, "/", kv_heads, " x ", head_dim, " inner ",
      c->spec.intermediate_size, " vocab ", c->spec.vocab_size, " ",
      DTypeName(policy.dtype), " layers [", stage.layers.begin, ", ",
      stage.layers.end, ") of ", layers, ", ", stage.longest, " positions, ",
      stage.num_blocks, " blocks, ", c->machine.threads, " threads, device ",
      device, ", ", PolicyText(policy));
  return c;
}

struct Predicted {
  double device = 0, host = 0, disk = 0;
};

Predicted Predict(const Case& c) {
  Predicted predicted;
  const Fractions fractions = FractionsOf(c.stage.policy);
  for (const CapacityRow& row : Capacities(c.stage)) {
    double& of = row.what == "device memory" ? predicted.device
                 : row.what == "disk space"  ? predicted.disk
                                             : predicted.host;
    of = std::max(of, row.bytes.At(fractions));
  }
  return predicted;
}

struct Loaded {
  absl::Status status;
  double device = 0, host = 0, disk = 0;  // at most
};

// In a directory of its own: images are made anew.
Loaded Load(const Case& c) {
  TempDir dir = TempDir::OnDisk();
  MemoryBudget host(Tier::kHost, c.machine.host_memory_bytes);
  MemoryBudget device(Tier::kDevice, c.machine.device_memory_bytes);
  MemoryBudget disk(Tier::kDisk, c.machine.disk_bytes);
  StageExecutor::Options options;
  options.layers = c.stage.layers;
  options.policy = c.stage.policy;
  options.max_model_len = c.stage.longest;
  options.max_sequences =
      c.stage.policy.gbs * c.stage.policy.num_microbatches * c.stage.num_blocks;
  options.compute_threads = c.machine.threads;
  options.host_budget = &host;
  if (c.machine.has_device()) {
    options.device.backend = kDevice;
    options.device_budget = &device;
  }
  if (c.disk) {
    options.disk_budget = &disk;
    options.disk_dir = dir.path();
  }
  const auto stage =
      LoadStage(c.spec, DummySource(), options, nullptr, nullptr);
  Loaded loaded;
  loaded.status = stage.status();
  loaded.host = static_cast<double>(host.peak_bytes());
  loaded.device = static_cast<double>(device.peak_bytes());
  loaded.disk = static_cast<double>(disk.peak_bytes());
  return loaded;
}

TEST(CapacityTest, IsWhatStagesTake) {
  for (uint32_t seed = 1; seed <= 60; ++seed) {
    const std::unique_ptr<Case> c = RandomCase(seed);
    SCOPED_TRACE(c->text);
    const Predicted predicted = Predict(*c);
    const Loaded loaded = Load(*c);
    ASSERT_TRUE(loaded.status.ok()) << loaded.status;
    // The runtime keeps room for a unit on its way to the device, which it
    // needs while it loads only.
    const StageBytes bytes = StageBytesOf(c->stage);
    const double loading =
        c->machine.has_device() ? std::max(bytes.layer, bytes.head) : 0;
    EXPECT_GE(predicted.host, loaded.host);
    EXPECT_LE(predicted.host, kShare * (loaded.host + loading) + kSpare);
    EXPECT_GE(predicted.device, loaded.device);
    EXPECT_LE(predicted.device, kShare * loaded.device + kDeviceSpare);
    // Images are charged while they are written only.
    EXPECT_GE(predicted.disk, loaded.disk);
  }
}

// A policy that fits by the planner's count loads within its budgets, and one
// that does not, by more than a twentieth, does not.
TEST(CapacityTest, SaysWhatFits) {
  int fit = 0, refused = 0;
  for (uint32_t seed = 101; seed <= 160; ++seed) {
    const std::unique_ptr<Case> c = RandomCase(seed);
    const Predicted enough = Predict(*c);
    Random random(seed);
    const auto budget = [&](double bytes) {
      const double share = random.Of({0.75, 0.9, 1.0, 1.0, 1.0, 1.1});
      return static_cast<uint64_t>(share * bytes) + 1;
    };
    c->machine.host_memory_bytes = budget(enough.host);
    if (c->machine.has_device()) {
      c->machine.device_memory_bytes = budget(enough.device);
    }
    if (c->disk) c->machine.disk_bytes = budget(enough.disk);
    SCOPED_TRACE(absl::StrCat(c->text, "; ", c->machine.host_memory_bytes, ", ",
                              c->machine.device_memory_bytes, ", ",
                              c->machine.disk_bytes));
    const Fractions fractions = FractionsOf(c->stage.policy);
    bool fits = true, far = false;
    for (const CapacityRow& row : Capacities(c->stage)) {
      const double bytes = row.bytes.At(fractions);
      fits = fits && bytes <= row.limit;
      far = far ||
            bytes > kShare * row.limit +
                        (row.what == "device memory" ? kDeviceSpare : kSpare);
    }
    const Loaded loaded = Load(*c);
    if (fits) {
      ++fit;
      EXPECT_TRUE(loaded.status.ok()) << loaded.status;
    } else if (far) {
      ++refused;
      EXPECT_EQ(loaded.status.code(), absl::StatusCode::kResourceExhausted)
          << loaded.status;
    }
  }
  EXPECT_GE(fit, 10);
  EXPECT_GE(refused, 10);
}

}  // namespace
}  // namespace sluice
