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

TensorSlice BindGptNeox(const DecoderSpec& spec, TensorRole role, int layer) {
  constexpr NeoxNames kGptNeoxNames = {
      .layers = "gpt_neox.layers",
      .attention = "attention",
      .embedding = "gpt_neox.embed_in",
      .final_norm = "gpt_neox.final_layer_norm",
      .head = "embed_out"};
  return BindNeox(kGptNeoxNames, spec, role, layer);
}

}  // namespace

const Family& GptNeoxFamily() {
  static const auto* const kFamily =
      new Family{{"gpt_neox"}, &DescribeNeox, &BindGptNeox};
  return *kFamily;
}

}  // namespace sluice
