#include <optional>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "runtime/model/families/config.h"

// Mixtral, and MiniMax-M2, which has the same names: there a bias helps to
// choose the experts, and all heads' q and k are normed together.

namespace sluice {
namespace {

constexpr ConfigDefaults kMixtralDefaults = {.vocab_size = 32000,
                                             .hidden_size = 4096,
                                             .intermediate_size = 14336,
                                             .num_layers = 32,
                                             .num_heads = 32,
                                             .num_kv_heads = 8,
                                             .max_positions = 4096 * 32,
                                             .bos = 1,
                                             .eos = 2};
constexpr MixtureSpec kMixtralMixture = {.experts = 8,
                                         .experts_per_token = 2,
                                         .expert_size = 14336,
                                         .normalize = true};

constexpr ConfigDefaults kMiniMaxDefaults = {.vocab_size = 200064,
                                             .hidden_size = 3072,
                                             .intermediate_size = 1536,
                                             .num_layers = 62,
                                             .num_heads = 48,
                                             .num_kv_heads = 8,
                                             .max_positions = 196608,
                                             .bos = 200034,
                                             .eos = 200020,
                                             .head_dim = 128};
constexpr MixtureSpec kMiniMaxMixture = {.experts = 256,
                                         .experts_per_token = 8,
                                         .expert_size = 1536,
                                         .router = RouterKind::kSigmoid,
                                         .choice_bias = true,
                                         .normalize = true};
constexpr MixtureKeys kKeys = {"num_local_experts", "num_experts_per_tok",
                               "intermediate_size"};

absl::Status DescribeMixtral(const nlohmann::json& config, DecoderSpec* spec) {
  ConfigReader reader(config);
  ReadCommon(reader, kMixtralDefaults, *spec);
  ReadHeads(reader, kMixtralDefaults, /*must_divide=*/false, *spec);
  ReadGatedMlp(reader, kMixtralDefaults, *spec);
  ReadMixture(reader, kKeys, kMixtralMixture, *spec);
  for (LayerSpec& layer : spec->layers) layer.mixture = true;
  const std::string type = ReadWindow(reader, std::nullopt, *spec);
  SLUICE_RETURN_IF_ERROR(reader.status());
  return SetRotary(config, {type}, spec);
}

absl::Status DescribeMiniMaxM2(const nlohmann::json& config,
                               DecoderSpec* spec) {
  ConfigReader reader(config);
  ReadCommon(reader, kMiniMaxDefaults, *spec);
  ReadHeads(reader, kMiniMaxDefaults, /*must_divide=*/false, *spec);
  ReadGatedMlp(reader, kMiniMaxDefaults, *spec);
  ReadMixture(reader, kKeys, kMiniMaxMixture, *spec);
  for (LayerSpec& layer : spec->layers) layer.mixture = true;
  spec->qk_norm = QkNorm::kAllHeads;
  // Published files have the dimensions that are rotated, and no factor.
  const int32_t dim = reader.Has("rotary_dim")
                          ? reader.Int("rotary_dim", 64, 2, spec->head_dim)
                          : ReadRotaryDim(reader, 1, *spec);
  SLUICE_RETURN_IF_ERROR(reader.status());
  return SetRotary(config, {kFullAttention}, spec,
                   {.dim = dim, .theta = 5000000});
}

TensorSlice Bind(const DecoderSpec& spec, TensorRole role, int layer) {
  const auto of_mixture = [&](const char* name) -> TensorSlice {
    return {absl::StrCat("model.layers.", layer, ".block_sparse_moe.", name)};
  };
  switch (role) {
    case TensorRole::kRouterWeight:
      return of_mixture("gate.weight");
    case TensorRole::kChoiceBias:
      return of_mixture("e_score_correction_bias");
    default:
      return BindLlama(spec, role, layer);
  }
}

TensorSlice BindExpert(const DecoderSpec& spec, TensorRole role, int layer,
                       int expert) {
  const char* const name = role == TensorRole::kExpertGateWeight ? "w1"
                           : role == TensorRole::kExpertUpWeight ? "w3"
                                                                 : "w2";
  return {absl::StrCat("model.layers.", layer, ".block_sparse_moe.experts.",
                       expert, ".", name, ".weight")};
}

}  // namespace

const Family& MixtralFamily() {
  static const auto* const kFamily =
      new Family{{"mixtral"}, &DescribeMixtral, &Bind, &BindExpert};
  return *kFamily;
}

const Family& MiniMaxM2Family() {
  static const auto* const kFamily =
      new Family{{"minimax_m2"}, &DescribeMiniMaxM2, &Bind, &BindExpert};
  return *kFamily;
}

}  // namespace sluice
