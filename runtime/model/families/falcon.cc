#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "runtime/model/families/config.h"

// Falcon: q, k and v in one tensor, few KV heads, attention and MLP side by
// side after one norm or two.

namespace sluice {
namespace {

constexpr ConfigDefaults kFalconDefaults = {.vocab_size = 65024,
                                            .hidden_size = 4544,
                                            .intermediate_size = 0,
                                            .num_layers = 32,
                                            .num_heads = 71,
                                            .max_positions = 2048,
                                            .bos = 11,
                                            .eos = 11,
                                            .tied_embeddings = true};

absl::Status DescribeFalcon(const nlohmann::json& config, DecoderSpec* spec) {
  ConfigReader reader(config, {{"hidden_size", "n_embed"},
                               {"intermediate_size", "ffn_hidden_size"},
                               {"num_key_value_heads", "num_kv_heads"}});
  ReadCommon(reader, kFalconDefaults, *spec);
  ReadEqualHeads(reader, *spec);
  ReadPlainMlp(reader, kFalconDefaults, "activation", "gelu", *spec);
  spec->norm_eps =
      static_cast<float>(reader.Number("layer_norm_epsilon", 1e-5, 0, 1));
  const bool alibi = reader.Bool("alibi", false);
  const bool grouped = reader.Bool("new_decoder_architecture", false);
  if (!grouped && reader.Bool("multi_query", true)) {
    spec->num_kv_heads = 1;
  } else if (grouped) {
    spec->num_kv_heads =
        reader.OptionalInt("num_key_value_heads", 1, spec->num_heads)
            .value_or(spec->num_heads);
    if (spec->num_heads % spec->num_kv_heads != 0) {
      reader.Fail("num_key_value_heads",
                  absl::StrCat("must divide num_attention_heads (",
                               spec->num_heads, ")"));
    }
  }
  spec->parallel = reader.Bool("parallel_attn", true);
  if (grouped && !spec->parallel) {
    reader.Unsupported("parallel_attn", "false with new_decoder_architecture");
  }
  const int32_t norms =
      reader.OptionalInt("num_ln_in_parallel_attn", 1, 2).value_or(2);
  spec->shared_norm = spec->parallel && !(grouped && norms == 2);
  spec->qkv_bias = spec->out_bias = spec->mlp_bias = reader.Bool("bias", false);
  SLUICE_RETURN_IF_ERROR(reader.status());
  if (!alibi) return SetRotary(config, {kFullAttention}, spec);
  spec->positions = PositionKind::kRoundedAlibi;
  spec->attention_scale =
      static_cast<float>(1.0 / std::sqrt(static_cast<double>(spec->head_dim)));
  return absl::OkStatus();
}

constexpr NeoxNames kFalconNames = {.layers = "transformer.h",
                                    .attention = "self_attention",
                                    .embedding = "transformer.word_embeddings",
                                    .final_norm = "transformer.ln_f",
                                    .head = "lm_head"};

TensorSlice BindFalcon(const DecoderSpec& spec, TensorRole role, int layer) {
  const auto of_layer = [&](const char* name) -> TensorSlice {
    return {absl::StrCat(kFalconNames.layers, ".", layer, ".", name)};
  };
  if (spec.parallel && !spec.shared_norm) {
    switch (role) {
      case TensorRole::kNorm1Weight:
        return of_layer("ln_attn.weight");
      case TensorRole::kNorm1Bias:
        return of_layer("ln_attn.bias");
      case TensorRole::kNorm2Weight:
        return of_layer("ln_mlp.weight");
      case TensorRole::kNorm2Bias:
        return of_layer("ln_mlp.bias");
      default:
        break;
    }
  }
  return BindNeox(kFalconNames, spec, role, layer);
}

}  // namespace

const Family& FalconFamily() {
  static const auto* const kFamily =
      new Family{{"falcon"}, &DescribeFalcon, &BindFalcon};
  return *kFamily;
}

}  // namespace sluice
