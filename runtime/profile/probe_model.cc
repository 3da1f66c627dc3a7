#include "runtime/profile/probe_model.h"

#include <cmath>

namespace sluice {

DecoderSpec ProbeModel(int32_t layers, int32_t hidden, int32_t head_dim,
                       int32_t intermediate, int32_t vocab) {
  DecoderSpec spec;
  spec.model_type = "probe";
  spec.vocab_size = vocab;
  spec.hidden_size = hidden;
  spec.embed_dim = hidden;
  spec.num_layers = layers;
  spec.num_heads = hidden / head_dim;
  spec.num_kv_heads = spec.num_heads % 4 == 0 ? spec.num_heads / 4 : 1;
  spec.head_dim = head_dim;
  spec.intermediate_size = intermediate;
  spec.max_positions = 1 << 20;
  RotarySpec& rotary = spec.rotaries.emplace_back();
  rotary.dim = head_dim;
  for (int32_t i = 0; i < head_dim / 2; ++i) {
    rotary.inv_freq.push_back(
        static_cast<float>(std::pow(10000.0, -2.0 * i / head_dim)));
  }
  spec.attention_scale = 1 / std::sqrt(static_cast<float>(head_dim));
  return spec;
}

}  // namespace sluice
