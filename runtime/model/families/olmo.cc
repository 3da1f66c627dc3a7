#include <string>
#include <vector>

#include "common/status_macros.h"
#include "runtime/model/families/config.h"

// OLMo 2 and 3: norms of what attention and MLP give, and of all heads' q and k
// together. OLMoE has the latter, and experts.

namespace sluice {
namespace {

constexpr ConfigDefaults kOlmoDefaults = {.vocab_size = 50304,
                                          .hidden_size = 4096,
                                          .intermediate_size = 11008,
                                          .num_layers = 32,
                                          .num_heads = 32,
                                          .max_positions = 2048,
                                          .eos = 50279};

constexpr ConfigDefaults kOlmoeDefaults = {.vocab_size = 50304,
                                           .hidden_size = 2048,
                                           .intermediate_size = 2048,
                                           .num_layers = 16,
                                           .num_heads = 16,
                                           .max_positions = 4096,
                                           .eos = 50279};
constexpr MixtureSpec kOlmoeMixture = {
    .experts = 64, .experts_per_token = 8, .expert_size = 2048};

absl::Status DescribeOlmo(const nlohmann::json& config, DecoderSpec* spec) {
  ConfigReader reader(config);
  ReadCommon(reader, kOlmoDefaults, *spec);
  ReadHeads(reader, kOlmoDefaults, /*must_divide=*/false, *spec);
  ReadGatedMlp(reader, kOlmoDefaults, *spec);
  spec->norm_eps =
      static_cast<float>(reader.Number("rms_norm_eps", 1e-5, 0, 1));
  spec->norm_place = NormPlace::kOutput;
  spec->qk_norm = QkNorm::kAllHeads;
  spec->qkv_bias = spec->out_bias = reader.Bool("attention_bias", false);
  if (spec->model_type == "olmo2") {
    SLUICE_RETURN_IF_ERROR(reader.status());
    return SetRotary(config, {kFullAttention}, spec);
  }
  const std::vector<std::string> types =
      ReadLayerTypes(reader, EveryNthFull(spec->num_layers, 4));
  ReadSlidingWindow(reader, types, 4096, *spec);
  SLUICE_RETURN_IF_ERROR(reader.status());
  return SetRotaryByType(config, types, "rope_theta", 500000, 500000, spec);
}

absl::Status DescribeOlmoe(const nlohmann::json& config, DecoderSpec* spec) {
  ConfigReader reader(config);
  ReadCommon(reader, kOlmoeDefaults, *spec);
  ReadHeads(reader, kOlmoeDefaults, /*must_divide=*/true, *spec);
  ReadGatedMlp(reader, kOlmoeDefaults, *spec);
  spec->norm_eps =
      static_cast<float>(reader.Number("rms_norm_eps", 1e-5, 0, 1));
  ReadMixture(reader,
              {"num_experts", "num_experts_per_tok", "intermediate_size"},
              kOlmoeMixture, *spec);
  spec->mixture.normalize = reader.Bool("norm_topk_prob", false);
  for (LayerSpec& layer : spec->layers) layer.mixture = true;
  spec->qk_norm = QkNorm::kAllHeads;
  spec->qkv_bias = spec->out_bias = reader.Bool("attention_bias", false);
  if (reader.Has("clip_qkv")) reader.Unsupported("clip_qkv", "(not null)");
  SLUICE_RETURN_IF_ERROR(reader.status());
  return SetRotary(config, {kFullAttention}, spec);
}

}  // namespace

const Family& OlmoFamily() {
  static const auto* const kFamily =
      new Family{{"olmo2", "olmo3"}, &DescribeOlmo, &BindLlama};
  return *kFamily;
}

const Family& OlmoeFamily() {
  static const auto* const kFamily =
      new Family{{"olmoe"}, &DescribeOlmoe, &BindLlama, &BindLlamaExpert};
  return *kFamily;
}

}  // namespace sluice
