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

}  // namespace

absl::Status RandomSource::ReadRows(const TensorRef& ref, int64_t row_begin,
                                    int64_t row_end, float* out) const {
  const bool matrix = ref.shape.size() == 2;
  const int64_t cols = matrix ? ref.shape[1] : ref.shape[0];
  const bool norm_weight = ref.role == TensorRole::kNorm1Weight ||
                           ref.role == TensorRole::kNorm2Weight ||
                           ref.role == TensorRole::kQNormWeight ||
                           ref.role == TensorRole::kKNormWeight ||
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
  spec.rotary.dim = spec.head_dim / 2 * 2;
  for (int32_t i = 0; i < spec.rotary.dim / 2; ++i) {
    spec.rotary.inv_freq.push_back(
        static_cast<float>(std::pow(10000.0, -2.0 * i / spec.rotary.dim)));
  }
  spec.attention_scale = 1 / std::sqrt(static_cast<float>(spec.head_dim));
  spec.sliding_window.assign(layers, 0);
  return spec;
}

}  // namespace sluice
