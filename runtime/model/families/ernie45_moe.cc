#include <cstdint>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "runtime/model/families/config.h"

// ERNIE 4.5 with experts: a bias helps to choose them, and heads are rotated in
// pairs of neighbours.

namespace sluice {
namespace {

constexpr ConfigDefaults kErnieDefaults = {.vocab_size = 103424,
                                           .hidden_size = 2560,
                                           .intermediate_size = 12288,
                                           .num_layers = 28,
                                           .num_heads = 20,
                                           .num_kv_heads = 4,
                                           .max_positions = 131072,
                                           .bos = 1,
                                           .eos = 2,
                                           .tied_embeddings = true};
constexpr MixtureSpec kErnieMixture = {.experts = 64,
                                       .experts_per_token = 6,
                                       .expert_size = 1536,
                                       .choice_bias = true,
                                       .normalize = true};

absl::Status DescribeErnie(const nlohmann::json& config, DecoderSpec* spec) {
  ConfigReader reader(config);
  ReadCommon(reader, kErnieDefaults, *spec);
  ReadHeads(reader, kErnieDefaults, /*must_divide=*/false, *spec);
  ReadGatedMlp(reader, kErnieDefaults, *spec);
  spec->norm_eps =
      static_cast<float>(reader.Number("rms_norm_eps", 1e-5, 0, 1));
  if (reader.Bool("use_bias", false)) reader.Unsupported("use_bias", "true");
  ReadMixture(reader, {"moe_num_experts", "moe_k", "moe_intermediate_size"},
              kErnieMixture, *spec);
  ReadSharedExperts(reader, "moe_num_shared_experts", 2, *spec);
  spec->mixture.least_sum =
      static_cast<float>(reader.Number("moe_norm_min", 1e-12, 0, 1));
  const int32_t first = reader.Int("moe_layer_start_index", 1, 0, kMaxLayers);
  int32_t last = reader.Int("moe_layer_end_index", -1, -1, kMaxLayers);
  if (last == -1) last = spec->num_layers - 1;
  const int32_t interval = reader.Int("moe_layer_interval", 1, 1, kMaxLayers);
  for (int32_t i = first; i <= last && i < spec->num_layers; ++i) {
    spec->layers[i].mixture = (i + 1) % interval == 0;
  }
  SLUICE_RETURN_IF_ERROR(reader.status());
  return SetRotary(config, {kFullAttention}, spec, {.theta = 500000});
}

TensorSlice BindErnie(const DecoderSpec& spec, TensorRole role, int layer) {
  TensorSlice slice = BindLlama(spec, role, layer);
  switch (role) {
    case TensorRole::kQWeight:
    case TensorRole::kKWeight:
      slice.interleaved = slice.head_rows = spec.head_dim;
      break;
    case TensorRole::kChoiceBias:
      slice.name = absl::StrCat("model.layers.", layer,
                                ".mlp.moe_statics.e_score_correction_bias");
      // It is stored as [1, experts].
      slice.by_head = true;
      slice.head_rows = spec.mixture.experts;
      break;
    default:
      break;
  }
  return slice;
}

}  // namespace

const Family& Ernie45MoeFamily() {
  static const auto* const kFamily = new Family{
      {"ernie4_5_moe"}, &DescribeErnie, &BindErnie, &BindLlamaExpert};
  return *kFamily;
}

}  // namespace sluice
