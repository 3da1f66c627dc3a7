#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "runtime/model/families/config.h"

// GPT-2: learned positions, and matrices that are stored as [inputs, outputs].

namespace sluice {
namespace {

constexpr ConfigDefaults kGpt2Defaults = {.vocab_size = 50257,
                                          .hidden_size = 768,
                                          .intermediate_size = 0,
                                          .num_layers = 12,
                                          .num_heads = 12,
                                          .max_positions = 1024,
                                          .bos = 50256,
                                          .eos = 50256,
                                          .tied_embeddings = true};

absl::Status DescribeGpt2(const nlohmann::json& config, DecoderSpec* spec) {
  ConfigReader reader(config, GptAliases());
  ReadCommon(reader, kGpt2Defaults, *spec);
  ReadEqualHeads(reader, *spec);
  ReadPlainMlp(reader, kGpt2Defaults, "activation_function", "gelu_new", *spec);
  spec->norm_eps =
      static_cast<float>(reader.Number("layer_norm_epsilon", 1e-5, 0, 1));
  spec->qkv_bias = spec->out_bias = spec->mlp_bias = true;
  spec->positions = PositionKind::kLearned;
  if (reader.Bool("add_cross_attention", false)) {
    reader.Unsupported("add_cross_attention", "true");
  }
  if (reader.Bool("scale_attn_by_inverse_layer_idx", false)) {
    for (int32_t layer = 0; layer < spec->num_layers; ++layer) {
      spec->layers[layer].attention_scale =
          1.0F / static_cast<float>(layer + 1);
    }
  }
  const bool scales = reader.Bool("scale_attn_weights", true);
  SLUICE_RETURN_IF_ERROR(reader.status());
  spec->attention_scale =
      scales ? static_cast<float>(
                   1.0 / std::sqrt(static_cast<double>(spec->head_dim)))
             : 1;
  return absl::OkStatus();
}

TensorSlice BindGpt2(const DecoderSpec& spec, TensorRole role, int layer) {
  using Role = TensorRole;
  const auto of_layer = [&](const char* name) -> TensorSlice {
    return {absl::StrCat("transformer.h.", layer, ".", name)};
  };
  const auto matrix = [&](const char* name) {
    TensorSlice slice = of_layer(name);
    slice.transposed = true;
    return slice;
  };
  const auto of_three = [&](int which, bool bias) {
    TensorSlice slice =
        bias ? of_layer("attn.c_attn.bias") : matrix("attn.c_attn.weight");
    slice.first_row = which * int64_t{spec.hidden_size};
    slice.tensor_rows = 3 * int64_t{spec.hidden_size};
    return slice;
  };
  switch (role) {
    case Role::kQWeight:
    case Role::kQBias:
      return of_three(0, role == Role::kQBias);
    case Role::kKWeight:
    case Role::kKBias:
      return of_three(1, role == Role::kKBias);
    case Role::kVWeight:
    case Role::kVBias:
      return of_three(2, role == Role::kVBias);
    case Role::kOutWeight:
      return matrix("attn.c_proj.weight");
    case Role::kOutBias:
      return of_layer("attn.c_proj.bias");
    case Role::kNorm2Weight:
      return of_layer("ln_2.weight");
    case Role::kNorm2Bias:
      return of_layer("ln_2.bias");
    case Role::kUpWeight:
      return matrix("mlp.c_fc.weight");
    case Role::kUpBias:
      return of_layer("mlp.c_fc.bias");
    case Role::kDownWeight:
      return matrix("mlp.c_proj.weight");
    case Role::kDownBias:
      return of_layer("mlp.c_proj.bias");
    case Role::kPositionEmbedding:
      return {"transformer.wpe.weight"};
    default:
      return BindGpt(spec, role, layer);
  }
}

}  // namespace

const Family& Gpt2Family() {
  static const auto* const kFamily =
      new Family{{"gpt2"}, &DescribeGpt2, &BindGpt2};
  return *kFamily;
}

}  // namespace sluice
