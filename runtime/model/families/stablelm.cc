#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "runtime/model/families/config.h"

namespace sluice {
namespace {

constexpr ConfigDefaults kStablelmDefaults = {.vocab_size = 50304,
                                              .hidden_size = 2560,
                                              .intermediate_size = 6912,
                                              .num_layers = 32,
                                              .num_heads = 32,
                                              .num_kv_heads = 32,
                                              .max_positions = 4096,
                                              .bos = 0,
                                              .eos = 0};

absl::Status DescribeStablelm(const nlohmann::json& config, DecoderSpec* spec) {
  ConfigReader reader(config);
  ReadCommon(reader, kStablelmDefaults, *spec);
  ReadHeads(reader, kStablelmDefaults, /*must_divide=*/true, *spec);
  ReadGatedMlp(reader, kStablelmDefaults, *spec);
  spec->norm = NormKind::kLayerNorm;
  spec->norm_eps =
      static_cast<float>(reader.Number("layer_norm_eps", 1e-5, 0, 1));
  spec->qkv_bias = reader.Bool("use_qkv_bias", false);
  if (reader.Bool("qk_layernorm", false)) {
    spec->qk_norm = QkNorm::kEachHeadOwnWeight;
  }
  spec->parallel = spec->shared_norm =
      reader.Bool("use_parallel_residual", false);
  const int32_t dim = ReadRotaryDim(reader, 0.25, *spec);
  SLUICE_RETURN_IF_ERROR(reader.status());
  return SetRotary(config, {kFullAttention}, spec, {.dim = dim});
}

// A head's norm of q or k is a tensor of its own.
TensorSlice BindStablelm(const DecoderSpec& spec, TensorRole role, int layer) {
  if (role != TensorRole::kQNormWeight && role != TensorRole::kKNormWeight) {
    return BindLlama(spec, role, layer);
  }
  TensorSlice slice;
  slice.name = absl::StrCat("model.layers.", layer, ".self_attn.",
                            role == TensorRole::kQNormWeight ? "q" : "k",
                            "_layernorm.norms");
  slice.head_rows = spec.head_dim;
  slice.tensor_each_head = true;
  return slice;
}

}  // namespace

const Family& StablelmFamily() {
  static const auto* const kFamily =
      new Family{{"stablelm"}, &DescribeStablelm, &BindStablelm};
  return *kFamily;
}

}  // namespace sluice
