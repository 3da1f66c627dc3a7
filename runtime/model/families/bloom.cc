#include <cmath>

#include "common/status_macros.h"
#include "runtime/model/families/config.h"

// BLOOM: ALiBi, a norm of the embedding, and q, k and v of each head in one
// tensor.

namespace sluice {
namespace {

constexpr ConfigDefaults kBloomDefaults = {.vocab_size = 250880,
                                           .hidden_size = 64,
                                           .intermediate_size = 0,
                                           .num_layers = 2,
                                           .num_heads = 8,
                                           .max_positions = 2048,
                                           .bos = 1,
                                           .eos = 2,
                                           .tied_embeddings = true};

absl::Status DescribeBloom(const nlohmann::json& config, DecoderSpec* spec) {
  // The files tell the length that the model was trained with, if any.
  ConfigReader reader(config, {{"hidden_size", "n_embed"},
                               {"num_hidden_layers", "n_layer"},
                               {"num_attention_heads", "n_head"},
                               {"max_position_embeddings", "seq_length"}});
  ReadCommon(reader, kBloomDefaults, *spec);
  ReadEqualHeads(reader, *spec);
  ReadPlainMlp(reader, kBloomDefaults, "hidden_act", "gelu_pytorch_tanh",
               *spec);
  spec->norm_eps =
      static_cast<float>(reader.Number("layer_norm_epsilon", 1e-5, 0, 1));
  spec->qkv_bias = spec->out_bias = spec->mlp_bias = true;
  spec->positions = PositionKind::kAlibi;
  spec->embed_norm = true;
  if (reader.Bool("apply_residual_connection_post_layernorm", false)) {
    reader.Unsupported("apply_residual_connection_post_layernorm", "true");
  }
  SLUICE_RETURN_IF_ERROR(reader.status());
  spec->attention_scale =
      static_cast<float>(1.0 / std::sqrt(static_cast<double>(spec->head_dim)));
  return absl::OkStatus();
}

constexpr NeoxNames kBloomNames = {.layers = "transformer.h",
                                   .attention = "self_attention",
                                   .embedding = "transformer.word_embeddings",
                                   .final_norm = "transformer.ln_f",
                                   .head = "lm_head"};

TensorSlice BindBloom(const DecoderSpec& spec, TensorRole role, int layer) {
  switch (role) {
    case TensorRole::kEmbedNormWeight:
      return {"transformer.word_embeddings_layernorm.weight"};
    case TensorRole::kEmbedNormBias:
      return {"transformer.word_embeddings_layernorm.bias"};
    default:
      return BindNeox(kBloomNames, spec, role, layer);
  }
}

}  // namespace

const Family& BloomFamily() {
  static const auto* const kFamily =
      new Family{{"bloom"}, &DescribeBloom, &BindBloom};
  return *kFamily;
}

}  // namespace sluice
