#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "runtime/model/families/config.h"

// GPT-J: attention and MLP side by side after one norm, a part of each head
// rotated in pairs of neighbours, and a head with a bias.

namespace sluice {
namespace {

constexpr ConfigDefaults kGptjDefaults = {.vocab_size = 50400,
                                          .hidden_size = 4096,
                                          .intermediate_size = 0,
                                          .num_layers = 28,
                                          .num_heads = 16,
                                          .max_positions = 2048,
                                          .bos = 50256,
                                          .eos = 50256};

absl::Status DescribeGptj(const nlohmann::json& config, DecoderSpec* spec) {
  ConfigReader reader(config, GptAliases());
  ReadCommon(reader, kGptjDefaults, *spec);
  ReadEqualHeads(reader, *spec);
  ReadPlainMlp(reader, kGptjDefaults, "activation_function", "gelu_new", *spec);
  spec->norm_eps =
      static_cast<float>(reader.Number("layer_norm_epsilon", 1e-5, 0, 1));
  spec->parallel = spec->shared_norm = true;
  spec->mlp_bias = spec->head_bias = true;
  int32_t dim = 64;
  if (reader.Present("rotary_dim")) {
    dim =
        reader.OptionalInt("rotary_dim", 2, kMaxHeads).value_or(spec->head_dim);
  }
  if (dim > spec->head_dim) {
    reader.Fail("rotary_dim", absl::StrCat("must be at most ", spec->head_dim,
                                           ", the elements of a head"));
  }
  SLUICE_RETURN_IF_ERROR(reader.status());
  return SetRotary(config, {kFullAttention}, spec, {.dim = dim});
}

TensorSlice BindGptj(const DecoderSpec& spec, TensorRole role, int layer) {
  using Role = TensorRole;
  const auto of_layer = [&](const char* name) -> TensorSlice {
    return {absl::StrCat("transformer.h.", layer, ".", name)};
  };
  const auto rotated = [&](const char* name) {
    TensorSlice slice = of_layer(name);
    slice.interleaved = spec.rotaries[0].dim;
    slice.head_rows = spec.head_dim;
    return slice;
  };
  switch (role) {
    case Role::kQWeight:
      return rotated("attn.q_proj.weight");
    case Role::kKWeight:
      return rotated("attn.k_proj.weight");
    case Role::kVWeight:
      return of_layer("attn.v_proj.weight");
    case Role::kOutWeight:
      return of_layer("attn.out_proj.weight");
    case Role::kUpWeight:
      return of_layer("mlp.fc_in.weight");
    case Role::kUpBias:
      return of_layer("mlp.fc_in.bias");
    case Role::kDownWeight:
      return of_layer("mlp.fc_out.weight");
    case Role::kDownBias:
      return of_layer("mlp.fc_out.bias");
    default:
      return BindGpt(spec, role, layer);
  }
}

}  // namespace

const Family& GptjFamily() {
  static const auto* const kFamily =
      new Family{{"gptj"}, &DescribeGptj, &BindGptj};
  return *kFamily;
}

}  // namespace sluice
