// The CUDA backend against the CPU's: random models of all kinds, run step by
// step through both.

#include <cublasLt.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/cuda/support/backend_world.h"
#include "tests/cuda/support/parity.h"
#include "tests/cuda/support/plain_device.h"
#include "tests/parity/random_source.h"
#ifdef SLUICE_CUDA_EMULATED
#include "tests/cuda/emulation/streams.h"
#endif

namespace sluice {
namespace {

// A model and the backends that run it.
class Worlds {
 public:
  Worlds(const DecoderSpec& spec, const WorldOptions& options)
      : spec_(spec), source_(options.seed + 1) {
    EXPECT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking),
              cudaSuccess);
    device_ = std::make_unique<PlainDevice>(&memory_);
    WorldOptions on_cpu = options;
    on_cpu.cut_packed = false;
    // The CPU has no layers in float16.
    if (on_cpu.dtype == DType::kFloat16) on_cpu.dtype = DType::kFloat32;
    if (on_cpu.kv_format == KvFormat::kFloat16) {
      on_cpu.kv_format = KvFormat::kFloat32;
    }
    cpu_ = BackendWorld::Create(spec_, source_, on_cpu, nullptr, nullptr);
    gpu_ =
        BackendWorld::Create(spec_, source_, options, device_.get(), stream_);
  }
  ~Worlds() {
    gpu_.reset();
    EXPECT_EQ(cudaStreamDestroy(stream_), cudaSuccess);
  }
  bool ok() const { return cpu_ != nullptr && gpu_ != nullptr; }

  void Compare(const WorldStep& step, double bound) {
    const WorldOutput want = cpu_->Run(step);
    const WorldOutput got = gpu_->Run(step);
    ASSERT_EQ(got.x.size(), want.x.size());
    for (size_t k = 0; k < want.x.size(); ++k) {
      EXPECT_LT(RelativeError(got.x[k], want.x[k]), bound)
          << "residual stream of micro-batch " << k;
    }
    ASSERT_EQ(got.logits.size(), want.logits.size());
    EXPECT_LT(RelativeError(got.logits, want.logits), bound) << "logits";
  }
  Backend& gpu() { return gpu_->backend(); }

 private:
  const DecoderSpec spec_;
  const RandomSource source_;
  MemoryBudget memory_{Tier::kDevice, uint64_t{1} << 32};
  cudaStream_t stream_ = nullptr;
  std::unique_ptr<PlainDevice> device_;
  std::unique_ptr<BackendWorld> cpu_, gpu_;
};

// Returns steps of prompts, then of the rest of a long one beside new tokens of
// others, then of single new tokens, in two micro-batches; the last step has
// rows of padding.
std::vector<WorldStep> Steps() {
  return {{{{0, 0, 5}, {1, 0, 40}, {2, 0, 33}}, {{3, 0, 1}, {4, 0, 70}}},
          {{{0, 5, 1}, {1, 40, 20}, {2, 33, 1}}, {{3, 1, 3}, {4, 70, 1}}},
          {{{0, 6, 1}, {1, 60, 1}, {2, 34, 1}}, {{3, 4, 1}, {4, 71, 1}}},
          {{{0, 7, 2, 1}, {1, 61, 3}, {2, 35, 1, 2}}, {{4, 72, 1}}}};
}

constexpr int kSequences = 5;

// Returns a model of OPT's kind.
DecoderSpec OptSpec(int32_t hidden, int32_t heads, int32_t inner) {
  DecoderSpec spec = LlamaSpec(2, hidden, heads, heads, inner, 150);
  spec.model_type = "opt";
  spec.norm = NormKind::kLayerNorm;
  spec.gated_mlp = false;
  spec.activation = Activation::kRelu;
  spec.qkv_bias = spec.out_bias = spec.mlp_bias = true;
  spec.positions = PositionKind::kLearned;
  spec.rotaries.clear();
  spec.position_offset = 2;
  spec.max_positions = 400;
  return spec;
}

// Returns how far results may be off, relatively. Both backends round what they
// compute to the dtype at the same places, but for a bit here and there; KV
// codes and the choice of positions hang on such bits.
double Bound(const WorldOptions& options) {
  double bound = options.dtype == DType::kFloat32    ? 2e-5
                 : options.dtype == DType::kBFloat16 ? 1.5e-2
                                                     : 4e-3;
  if (options.kv_format == KvFormat::kInt8) bound = std::max(bound, 1e-2);
  if (options.kv_format == KvFormat::kInt4) bound = std::max(bound, 5e-2);
  if (options.sparsity < 1) {
    const bool codes = options.kv_format == KvFormat::kInt8 ||
                       options.kv_format == KvFormat::kInt4;
    bound = codes ? 0.2 : 3 * bound;
  }
  return bound;
}

TEST(CudaBackendTest, LlamaInFloat32) {
  WorldOptions options;
  options.num_sequences = kSequences;
  Worlds worlds(LlamaSpec(2, 96, 6, 2, 200, 301), options);
  ASSERT_TRUE(worlds.ok());
  for (const WorldStep& step : Steps()) worlds.Compare(step, Bound(options));
}

TEST(CudaBackendTest, OptInFloat32) {
  WorldOptions options;
  options.num_sequences = kSequences;
  Worlds worlds(OptSpec(64, 4, 130), options);
  ASSERT_TRUE(worlds.ok());
  for (const WorldStep& step : Steps()) worlds.Compare(step, Bound(options));
}

DecoderSpec RandomSpec(Random& random) {
  const int kv_heads = random.Int(1, 3);
  const int head_dim = 2 * random.Int(4, 24);
  const int hidden = 8 * random.Int(4, 14);
  DecoderSpec spec = LlamaSpec(2, hidden, kv_heads * random.Int(1, 4), kv_heads,
                               random.Size(250), random.Int(100, 700));
  spec.head_dim = head_dim;
  spec.attention_scale = 1 / std::sqrt(static_cast<float>(head_dim));
  if (random.Coin()) {
    spec.norm = NormKind::kLayerNorm;
    spec.norm_affine = random.Coin();
  }
  spec.gated_mlp = random.Coin();
  // The groups of quantized weights are the same where gate and up columns are
  // whole groups: in the CPU's panels they take turns.
  if (spec.gated_mlp && spec.intermediate_size > 64) {
    spec.intermediate_size = spec.intermediate_size / 64 * 64;
  } else if (spec.gated_mlp) {
    spec.intermediate_size = 64;
  }
  spec.activation = std::vector<Activation>{
      Activation::kSilu, Activation::kGelu, Activation::kGeluTanh,
      Activation::kRelu}[random.Int(0, 3)];
  spec.norm_place = std::vector<NormPlace>{
      NormPlace::kInput, NormPlace::kInput, NormPlace::kInputAndOutput,
      NormPlace::kOutput, NormPlace::kSum}[random.Int(0, 4)];
  if (spec.norm_place == NormPlace::kInput) {
    spec.parallel = random.Int(0, 2) == 0;
    spec.shared_norm = spec.parallel && random.Coin();
  }
  spec.norm_bias = random.Coin();
  spec.final_norm = spec.norm_place != NormPlace::kSum || random.Coin();
  spec.qk_norm = std::vector<QkNorm>{QkNorm::kNone, QkNorm::kEachHead,
                                     QkNorm::kEachHeadOwnWeight,
                                     QkNorm::kAllHeads}[random.Int(0, 3)];
  if (random.Int(0, 3) == 0) spec.attention_cap = 3;
  if (random.Int(0, 3) == 0) spec.logit_cap = 4;
  spec.head_bias = random.Int(0, 3) == 0;
  spec.qkv_bias = random.Coin();
  spec.out_bias = random.Coin();
  spec.mlp_bias = random.Coin();
  if (random.Coin()) {
    spec.positions = PositionKind::kLearned;
    spec.rotaries.clear();
    spec.position_offset = random.Int(0, 2);
    spec.max_positions = 400;
  } else if (random.Int(0, 3) == 0) {
    spec.positions = spec.vocab_size % 2 == 0 ? PositionKind::kAlibi
                                              : PositionKind::kRoundedAlibi;
    spec.rotaries.clear();
  } else {
    // Some of a head's elements may not be turned.
    spec.rotaries.resize(random.Int(1, 2));
    for (RotarySpec& rotary : spec.rotaries) {
      rotary.dim = 2 * random.Int(1, head_dim / 2);
      rotary.inv_freq.resize(rotary.dim / 2);
      for (float& f : rotary.inv_freq) {
        f = 1.0f / static_cast<float>(random.Int(1, 1000));
      }
      rotary.attention_factor = random.Coin() ? 1.0f : 1.1f;
    }
  }
  spec.layers.resize(2);
  for (LayerSpec& layer : spec.layers) {
    layer.rotary = random.Int(-1, static_cast<int>(spec.rotaries.size()) - 1);
  }
  if (spec.vocab_size % 4 == 0) spec.layers[1].attention_scale = 0.5F;
  spec.embed_norm = random.Int(0, 3) == 0;
  spec.tied_embeddings = random.Coin();
  if (random.Int(0, 3) == 0) spec.embed_dim = random.Size(hidden);
  if (random.Int(0, 3) == 0) spec.layers[0].window = random.Int(3, 60);
  return spec;
}

WorldOptions RandomOptions(Random& random, int seed) {
  WorldOptions options;
  options.num_sequences = kSequences;
  options.seed = static_cast<unsigned>(seed);
  options.dtype = std::vector<DType>{DType::kFloat32, DType::kBFloat16,
                                     DType::kFloat16}[random.Int(0, 2)];
  options.weight_format =
      std::vector<WeightFormat>{WeightFormat::kFull, WeightFormat::kInt8,
                                WeightFormat::kInt4}[random.Int(0, 2)];
  options.kv_format =
      std::vector<KvFormat>{UnquantizedKvFormat(options.dtype), KvFormat::kInt8,
                            KvFormat::kInt4}[random.Int(0, 2)];
  if (random.Int(0, 3) == 0) options.sparsity = 0.4f;
  options.head_rows = random.Coin() ? 3 : 16;
  options.attention_slots = random.Int(1, 2);
  options.dequantize =
      options.weight_format != WeightFormat::kFull && random.Coin();
  options.cut_packed = random.Coin();
  return options;
}

void CompareRandomModel(int seed) {
  Random random(seed);
  const DecoderSpec spec = RandomSpec(random);
  const WorldOptions options = RandomOptions(random, seed);
  SCOPED_TRACE(absl::StrCat(
      "seed ", seed, ": ", std::string(DTypeName(options.dtype)), ", weights ",
      std::string(WeightFormatName(options.weight_format)), ", KV ",
      std::string(KvFormatName(options.kv_format)), ", sparsity ",
      options.sparsity));
  Worlds worlds(spec, options);
  ASSERT_TRUE(worlds.ok());
  for (const WorldStep& step : Steps()) worlds.Compare(step, Bound(options));
}

TEST(CudaBackendTest, RandomModels) {
  for (int seed = 0; seed < 60; ++seed) CompareRandomModel(seed);
}

// Runs step after step of one new token each, as it is when sequences are
// generated: they are recorded, after some, and then launched as one.
void CompareRecordedSteps(int seed) {
  Random random(seed);
  const DecoderSpec spec = RandomSpec(random);
  const WorldOptions options = RandomOptions(random, seed);
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  Worlds worlds(spec, options);
  ASSERT_TRUE(worlds.ok());
  worlds.Compare({{{0, 0, 5}, {1, 0, 60}, {2, 0, 31}}, {{3, 0, 1}, {4, 0, 70}}},
                 Bound(options));
#ifdef SLUICE_CUDA_EMULATED
  emulation::TakeGraphLaunches();
#endif
  constexpr int kSteps = 8;
  for (int i = 0; i < kSteps; ++i) {
    const WorldStep step = {{{0, 5 + i, 1}, {1, 60 + i, 1}, {2, 31 + i, 1}},
                            {{3, 1 + i, 1}, {4, 70 + i, 1}}};
    worlds.Compare(step, Bound(options));
    // A step of another shape comes in between.
    if (i == 5) worlds.Compare({{{0, 5 + i, 3}, {2, 31 + i, 1}}}, 1);
  }
#ifdef SLUICE_CUDA_EMULATED
  EXPECT_EQ(emulation::TakeGraphLaunches(), kSteps - 3);
#endif
}

TEST(CudaBackendTest, RecordedSteps) {
  for (int seed = 200; seed < 212; ++seed) CompareRecordedSteps(seed);
}

#ifdef SLUICE_CUDA_EMULATED
// The results are right however late the device is.
TEST(CudaBackendTest, NothingIsReadBeforeItIsThere) {
  for (const auto timing :
       {emulation::Timing::kLateKernels, emulation::Timing::kLateCopies}) {
    emulation::SetTiming(timing);
    for (int seed = 100; seed < 106; ++seed) CompareRandomModel(seed);
    for (int seed = 212; seed < 215; ++seed) CompareRecordedSteps(seed);
  }
  emulation::SetTiming(emulation::Timing::kAtOnce);
}
#endif

}  // namespace
}  // namespace sluice
