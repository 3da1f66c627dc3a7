#include <cstdint>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "runtime/model/families/config.h"

// GLM-4.5 and its kin: the first layers have an MLP, the others a shared expert
// and experts that a bias helps to choose.

namespace sluice {
namespace {

constexpr ConfigDefaults kGlm4MoeDefaults = {.vocab_size = 151552,
                                             .hidden_size = 4096,
                                             .intermediate_size = 10944,
                                             .num_layers = 46,
                                             .num_heads = 96,
                                             .num_kv_heads = 8,
                                             .max_positions = 131072};
constexpr MixtureSpec kGlm4Mixture = {.experts = 128,
                                      .experts_per_token = 8,
                                      .expert_size = 1408,
                                      .router = RouterKind::kSigmoid,
                                      .choice_bias = true};

absl::Status DescribeGlm4Moe(const nlohmann::json& config, DecoderSpec* spec) {
  constexpr double kMaxFactor = 1e9;
  ConfigReader reader(config);
  ReadCommon(reader, kGlm4MoeDefaults, *spec);
  ReadHeads(reader, kGlm4MoeDefaults, /*must_divide=*/false, *spec);
  ReadGatedMlp(reader, kGlm4MoeDefaults, *spec);
  spec->norm_eps =
      static_cast<float>(reader.Number("rms_norm_eps", 1e-5, 0, 1));
  ReadMixture(
      reader,
      {"n_routed_experts", "num_experts_per_tok", "moe_intermediate_size"},
      kGlm4Mixture, *spec);
  ReadSharedExperts(reader, "n_shared_experts", 1, *spec);
  MixtureSpec& mixture = spec->mixture;
  mixture.normalize = reader.Bool("norm_topk_prob", true);
  mixture.scale = static_cast<float>(
      reader.Number("routed_scaling_factor", 1, 1 / kMaxFactor, kMaxFactor));
  ReadExpertGroups(reader, *spec);
  const int32_t dense =
      reader.Int("first_k_dense_replace", 1, 0, spec->num_layers);
  for (int32_t i = dense; i < spec->num_layers; ++i) {
    spec->layers[i].mixture = true;
  }
  spec->qkv_bias = reader.Bool("attention_bias", false);
  if (reader.Bool("use_qk_norm", false)) spec->qk_norm = QkNorm::kEachHead;
  const int32_t dim = ReadRotaryDim(reader, 0.5, *spec);
  SLUICE_RETURN_IF_ERROR(reader.status());
  return SetRotary(config, {kFullAttention}, spec, {.dim = dim});
}

}  // namespace

const Family& Glm4MoeFamily() {
  static const auto* const kFamily =
      new Family{{"glm4_moe"}, &DescribeGlm4Moe, &BindLlama, &BindLlamaExpert};
  return *kFamily;
}

}  // namespace sluice
