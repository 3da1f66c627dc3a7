#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "runtime/model/families/config.h"

// GLM-4: norms of inputs and outputs, gate and up in one tensor, and a part of
// each head rotated in pairs of neighbours. "glm" is the same without the norms
// of outputs.

namespace sluice {
namespace {

constexpr ConfigDefaults kGlm4Defaults = {.vocab_size = 151552,
                                          .hidden_size = 4096,
                                          .intermediate_size = 13696,
                                          .num_layers = 40,
                                          .num_heads = 32,
                                          .num_kv_heads = 2,
                                          .max_positions = 131072,
                                          .head_dim = 128};

absl::Status DescribeGlm4(const nlohmann::json& config, DecoderSpec* spec) {
  ConfigReader reader(config);
  ReadCommon(reader, kGlm4Defaults, *spec);
  if (!reader.Present("eos_token_id")) {
    spec->eos_token_ids = {151329, 151336, 151338};
  }
  ReadHeads(reader, kGlm4Defaults, /*must_divide=*/false, *spec);
  ReadGatedMlp(reader, kGlm4Defaults, *spec);
  spec->norm_eps =
      static_cast<float>(reader.Number("rms_norm_eps", 1.5625e-7, 0, 1));
  spec->norm_place = spec->model_type == "glm" ? NormPlace::kInput
                                               : NormPlace::kInputAndOutput;
  spec->qkv_bias = reader.Bool("attention_bias", true);
  const int32_t dim = ReadRotaryDim(reader, 0.5, *spec);
  SLUICE_RETURN_IF_ERROR(reader.status());
  return SetRotary(config, {kFullAttention}, spec, {.dim = dim});
}

TensorSlice BindGlm4(const DecoderSpec& spec, TensorRole role, int layer) {
  TensorSlice slice = BindLlama(spec, role, layer);
  const auto of_layer = [&](const char* name) {
    slice.name = absl::StrCat("model.layers.", layer, ".", name);
  };
  switch (role) {
    case TensorRole::kQWeight:
    case TensorRole::kQBias:
    case TensorRole::kKWeight:
    case TensorRole::kKBias:
      slice.interleaved = spec.rotaries[0].dim;
      slice.head_rows = spec.head_dim;
      break;
    case TensorRole::kGateWeight:
    case TensorRole::kUpWeight:
      of_layer("mlp.gate_up_proj.weight");
      slice.tensor_rows = 2 * int64_t{spec.intermediate_size};
      if (role == TensorRole::kUpWeight) {
        slice.first_row = spec.intermediate_size;
      }
      break;
    case TensorRole::kOutNormWeight:
      of_layer("post_self_attn_layernorm.weight");
      break;
    case TensorRole::kDownNormWeight:
      of_layer("post_mlp_layernorm.weight");
      break;
    default:
      break;
  }
  return slice;
}

}  // namespace

const Family& Glm4Family() {
  static const auto* const kFamily =
      new Family{{"glm", "glm4"}, &DescribeGlm4, &BindGlm4};
  return *kFamily;
}

}  // namespace sluice
