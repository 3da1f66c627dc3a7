#include "tests/parity/random_source.h"

#include <cmath>

#include "absl/strings/string_view.h"

namespace sluice {
namespace {

// SplitMix64 (Steele, Lea and Flood 2014).
uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

uint64_t HashName(absl::string_view name) {
  uint64_t h = 0;
  for (const char c : name) h = Mix(h ^ static_cast<unsigned char>(c));
  return h;
}

RotarySpec Rotary(int32_t head_dim, double theta) {
  RotarySpec rotary;
  rotary.dim = head_dim / 2 * 2;
  for (int32_t i = 0; i < rotary.dim / 2; ++i) {
    rotary.inv_freq.push_back(
        static_cast<float>(std::pow(theta, -2.0 * i / rotary.dim)));
  }
  return rotary;
}

}  // namespace

absl::Status RandomSource::ReadRows(const TensorRef& ref, int64_t row_begin,
                                    int64_t row_end, float* out) const {
  const bool matrix = ref.shape.size() == 2;
  const int64_t cols = matrix ? ref.shape[1] : ref.shape[0];
  const bool norm_weight = ref.role == TensorRole::kNorm1Weight ||
                           ref.role == TensorRole::kNorm2Weight ||
                           ref.role == TensorRole::kQNormWeight ||
                           ref.role == TensorRole::kKNormWeight ||
                           ref.role == TensorRole::kOutNormWeight ||
                           ref.role == TensorRole::kDownNormWeight ||
                           ref.role == TensorRole::kEmbedNormWeight ||
                           ref.role == TensorRole::kFinalNormWeight;
  // Keeps activations near unit size from layer to layer.
  const float scale =
      matrix ? 1.7f / std::sqrt(static_cast<float>(cols)) : 0.1f;
  const float base = norm_weight ? 1.0f : 0.0f;
  const uint64_t key = Mix(seed_ ^ HashName(ref.name));
  for (int64_t row = row_begin; row < row_end; ++row) {
    uint64_t state = Mix(key + static_cast<uint64_t>(row));
    for (int64_t col = 0; col < cols; ++col) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      const auto bits = static_cast<int32_t>(state >> 32);
      *out++ = base + scale * static_cast<float>(bits) * 0x1p-31f;
    }
  }
  return absl::OkStatus();
}

DecoderSpec LlamaSpec(int32_t layers, int32_t hidden, int32_t heads,
                      int32_t kv_heads, int32_t inner, int32_t vocab) {
  DecoderSpec spec;
  spec.model_type = "llama";
  spec.vocab_size = vocab;
  spec.hidden_size = hidden;
  spec.embed_dim = hidden;
  spec.num_layers = layers;
  spec.num_heads = heads;
  spec.num_kv_heads = kv_heads;
  spec.head_dim = hidden / heads;
  spec.intermediate_size = inner;
  spec.max_positions = 4096;
  spec.rotaries = {Rotary(spec.head_dim, 10000)};
  spec.attention_scale = 1 / std::sqrt(static_cast<float>(spec.head_dim));
  return spec;
}

DecoderSpec GemmaSpec(int32_t layers) {
  DecoderSpec spec = LlamaSpec(layers, 72, 4, 2, 130, 203);
  spec.head_dim = 24;
  spec.attention_scale = 0.2F;
  spec.norm_place = NormPlace::kInputAndOutput;
  spec.activation = Activation::kGeluTanh;
  spec.qk_norm = QkNorm::kEachHead;
  spec.attention_cap = 2;
  spec.logit_cap = 5;
  spec.rotaries = {Rotary(24, 1e6), Rotary(24, 100)};
  for (int32_t i = 0; i < layers; ++i) {
    spec.layers.push_back(i % 2 == 0 ? LayerSpec{.window = 20, .rotary = 1}
                                     : LayerSpec());
  }
  return spec;
}

DecoderSpec OlmoSpec(int32_t layers) {
  DecoderSpec spec = LlamaSpec(layers, 96, 6, 2, 140, 170);
  spec.norm_place = NormPlace::kOutput;
  spec.qk_norm = QkNorm::kAllHeads;
  return spec;
}

DecoderSpec BloomSpec(int32_t layers) {
  DecoderSpec spec = LlamaSpec(layers, 72, 6, 6, 150, 160);
  spec.norm = NormKind::kLayerNorm;
  spec.gated_mlp = false;
  spec.activation = Activation::kGeluTanh;
  spec.qkv_bias = spec.out_bias = spec.mlp_bias = true;
  spec.positions = PositionKind::kAlibi;
  spec.rotaries.clear();
  spec.embed_norm = true;
  return spec;
}

DecoderSpec FalconSpec(int32_t layers) {
  DecoderSpec spec = BloomSpec(layers);
  spec.positions = PositionKind::kRoundedAlibi;
  spec.embed_norm = false;
  for (int32_t i = 0; i < layers; ++i) {
    spec.layers.push_back({.attention_scale = 1 / static_cast<float>(i + 1)});
  }
  return spec;
}

DecoderSpec MixtureOfExperts(int32_t layers, RouterKind router) {
  DecoderSpec spec = LlamaSpec(layers, 64, 4, 2, 130, 203);
  spec.qk_norm = QkNorm::kEachHead;
  spec.mixture = {.experts = 7,
                  .experts_per_token = 3,
                  .expert_size = 44,
                  .router = router,
                  .normalize = router != RouterKind::kSoftmax};
  if (router == RouterKind::kSigmoid) {
    spec.mixture.shared_size = 50;
    spec.mixture.choice_bias = true;
    spec.mixture.scale = 2.5F;
  } else if (router == RouterKind::kChosenSoftmax) {
    spec.mixture.router_bias = spec.mixture.expert_bias = true;
  } else {
    spec.mixture.shared_size = 30;
    spec.mixture.shared_score = true;
  }
  for (int32_t i = 0; i < layers; ++i) {
    spec.layers.push_back({.mixture = i % 3 != 1});
  }
  return spec;
}

DecoderSpec GroupedMixture(int32_t layers) {
  DecoderSpec spec = LlamaSpec(layers, 64, 4, 2, 130, 150);
  spec.norm_place = NormPlace::kInputAndOutput;
  spec.gated_mlp = false;
  spec.activation = Activation::kGelu;
  spec.mixture = {.experts = 12,
                  .experts_per_token = 4,
                  .expert_size = 70,
                  .router = RouterKind::kSigmoid,
                  .groups = 4,
                  .chosen_groups = 2};
  spec.layers.assign(layers, {.mixture = true});
  return spec;
}

DecoderSpec ParallelSpec(int32_t layers) {
  DecoderSpec spec = LlamaSpec(layers, 80, 5, 5, 150, 160);
  spec.norm = NormKind::kLayerNorm;
  spec.norm_bias = false;
  spec.parallel = spec.shared_norm = true;
  spec.gated_mlp = false;
  spec.activation = Activation::kGelu;
  spec.qk_norm = QkNorm::kEachHeadOwnWeight;
  spec.head_bias = true;
  // Some layers do not turn positions, the others some of a head's elements.
  spec.rotaries = {Rotary(8, 10000)};
  for (int32_t i = 0; i < layers; ++i) {
    spec.layers.push_back({.rotary = i % 3 == 1 ? -1 : 0});
  }
  return spec;
}

}  // namespace sluice
