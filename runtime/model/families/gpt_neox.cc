#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "runtime/model/families/config.h"

// GPT-NeoX and Pythia: q, k and v of each head in one tensor, a part of each
// head rotated, attention and MLP side by side or not.

namespace sluice {
namespace {

constexpr ConfigDefaults kNeoxDefaults = {.vocab_size = 50432,
                                          .hidden_size = 6144,
                                          .intermediate_size = 24576,
                                          .num_layers = 44,
                                          .num_heads = 64,
                                          .max_positions = 2048,
                                          .bos = 0,
                                          .eos = 2};

absl::Status DescribeNeox(const nlohmann::json& config, DecoderSpec* spec) {
  ConfigReader reader(config, {{"partial_rotary_factor", "rotary_pct"}});
  ReadCommon(reader, kNeoxDefaults, *spec);
  ReadEqualHeads(reader, *spec);
  ReadPlainMlp(reader, kNeoxDefaults, "hidden_act", "gelu", *spec);
  spec->norm_eps =
      static_cast<float>(reader.Number("layer_norm_eps", 1e-5, 0, 1));
  spec->parallel = reader.Bool("use_parallel_residual", true);
  spec->qkv_bias = spec->out_bias = reader.Bool("attention_bias", true);
  spec->mlp_bias = true;
  const int32_t dim = ReadRotaryDim(reader, 0.25, *spec);
  const double theta = reader.Number("rotary_emb_base", 10000, 1e-30, 1e30);
  SLUICE_RETURN_IF_ERROR(reader.status());
  return SetRotary(config, {kFullAttention}, spec,
                   {.dim = dim, .theta = theta});
}

TensorSlice BindNeox(const DecoderSpec& spec, TensorRole role, int layer) {
  using Role = TensorRole;
  const auto of_layer = [&](const char* name) {
    return absl::StrCat("gpt_neox.layers.", layer, ".", name);
  };
  if (IsQkv(role)) {
    return BindGroupedQkv(
        spec, role,
        of_layer(IsQkvBias(role) ? "attention.query_key_value.bias"
                                 : "attention.query_key_value.weight"));
  }
  switch (role) {
    case Role::kNorm1Weight:
      return {of_layer("input_layernorm.weight")};
    case Role::kNorm1Bias:
      return {of_layer("input_layernorm.bias")};
    case Role::kNorm2Weight:
      return {of_layer("post_attention_layernorm.weight")};
    case Role::kNorm2Bias:
      return {of_layer("post_attention_layernorm.bias")};
    case Role::kOutWeight:
      return {of_layer("attention.dense.weight")};
    case Role::kOutBias:
      return {of_layer("attention.dense.bias")};
    case Role::kUpWeight:
      return {of_layer("mlp.dense_h_to_4h.weight")};
    case Role::kUpBias:
      return {of_layer("mlp.dense_h_to_4h.bias")};
    case Role::kDownWeight:
      return {of_layer("mlp.dense_4h_to_h.weight")};
    case Role::kDownBias:
      return {of_layer("mlp.dense_4h_to_h.bias")};
    case Role::kEmbedding:
      return {"gpt_neox.embed_in.weight"};
    case Role::kFinalNormWeight:
      return {"gpt_neox.final_layer_norm.weight"};
    case Role::kFinalNormBias:
      return {"gpt_neox.final_layer_norm.bias"};
    case Role::kHead:
      return {spec.tied_embeddings ? "gpt_neox.embed_in.weight"
                                   : "embed_out.weight"};
    default:
      return BindLlama(spec, role, layer);
  }
}

}  // namespace

const Family& GptNeoxFamily() {
  static const auto* const kFamily =
      new Family{{"gpt_neox"}, &DescribeNeox, &BindNeox};
  return *kFamily;
}

}  // namespace sluice
