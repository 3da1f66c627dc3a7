#include <string>
#include <vector>

#include "common/status_macros.h"
#include "runtime/model/families/config.h"

// Command R, R+ and R7B: attention and MLP side by side, after one norm without
// a bias, and each head rotated in pairs of neighbours; of Cohere 2, only in
// layers with a window. R+ norms q and k.

namespace sluice {
namespace {

constexpr ConfigDefaults kCohereDefaults = {.vocab_size = 256000,
                                            .hidden_size = 8192,
                                            .intermediate_size = 22528,
                                            .num_layers = 40,
                                            .num_heads = 64,
                                            .max_positions = 8192,
                                            .bos = 5,
                                            .eos = 255001,
                                            .tied_embeddings = true};

absl::Status DescribeCohere(const nlohmann::json& config, DecoderSpec* spec) {
  ConfigReader reader(config);
  ReadCommon(reader, kCohereDefaults, *spec);
  ReadHeads(reader, kCohereDefaults, /*must_divide=*/true, *spec);
  ReadGatedMlp(reader, kCohereDefaults, *spec);
  spec->norm = NormKind::kLayerNorm;
  spec->norm_bias = false;
  spec->norm_eps =
      static_cast<float>(reader.Number("layer_norm_eps", 1e-5, 0, 1));
  spec->parallel = spec->shared_norm = true;
  spec->qkv_bias = spec->out_bias = reader.Bool("attention_bias", false);
  spec->logit_scale =
      static_cast<float>(reader.Number("logit_scale", 0.0625, 1e-9, 1e9));
  if (spec->model_type == "cohere") {
    if (reader.Bool("use_qk_norm", false)) {
      spec->qk_norm = QkNorm::kEachHeadOwnWeight;
    }
    SLUICE_RETURN_IF_ERROR(reader.status());
    return SetRotary(config, {kFullAttention}, spec);
  }
  const int32_t period = reader.Int("sliding_window_pattern", 4, 1, kMaxLayers);
  const std::vector<std::string> types =
      ReadLayerTypes(reader, EveryNthFull(spec->num_layers, period));
  ReadSlidingWindow(reader, types, 4096, *spec);
  for (LayerSpec& layer : spec->layers) {
    if (layer.window == 0) layer.rotary = -1;
  }
  SLUICE_RETURN_IF_ERROR(reader.status());
  return SetRotary(config, {}, spec);
}

TensorSlice BindCohere(const DecoderSpec& spec, TensorRole role, int layer) {
  TensorSlice slice = BindLlama(spec, role, layer);
  switch (role) {
    case TensorRole::kQNormWeight:
    case TensorRole::kKNormWeight:
      slice.by_head = true;
      [[fallthrough]];
    case TensorRole::kQWeight:
    case TensorRole::kQBias:
    case TensorRole::kKWeight:
    case TensorRole::kKBias:
      // Layers that do not rotate may have any order of elements.
      slice.interleaved = slice.head_rows = spec.head_dim;
      break;
    default:
      break;
  }
  return slice;
}

}  // namespace

const Family& CohereFamily() {
  static const auto* const kFamily =
      new Family{{"cohere", "cohere2"}, &DescribeCohere, &BindCohere};
  return *kFamily;
}

}  // namespace sluice
