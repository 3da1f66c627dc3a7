#include <algorithm>
#include <optional>
#include <vector>

#include "common/status_macros.h"
#include "runtime/model/families/config.h"

namespace sluice {
namespace {

constexpr ConfigDefaults kQwen3MoeDefaults = {.vocab_size = 151936,
                                              .hidden_size = 2048,
                                              .intermediate_size = 6144,
                                              .num_layers = 24,
                                              .num_heads = 32,
                                              .num_kv_heads = 4,
                                              .max_positions = 32768};
constexpr MixtureSpec kQwen3Mixture = {
    .experts = 128, .experts_per_token = 8, .expert_size = 768};

absl::Status DescribeQwen3Moe(const nlohmann::json& config, DecoderSpec* spec) {
  ConfigReader reader(config);
  ReadCommon(reader, kQwen3MoeDefaults, *spec);
  ReadHeads(reader, kQwen3MoeDefaults, /*must_divide=*/false, *spec);
  ReadGatedMlp(reader, kQwen3MoeDefaults, *spec);
  ReadMixture(reader,
              {"num_experts", "num_experts_per_tok", "moe_intermediate_size"},
              kQwen3Mixture, *spec);
  spec->mixture.normalize = reader.Bool("norm_topk_prob", false);
  const int32_t step = reader.Int("decoder_sparse_step", 1, 1, kMaxLayers);
  const std::vector<int32_t> dense =
      reader.OptionalInts("mlp_only_layers", 0, kMaxLayers)
          .value_or(std::vector<int32_t>());
  for (int32_t i = 0; i < spec->num_layers; ++i) {
    spec->layers[i].mixture =
        (i + 1) % step == 0 &&
        std::find(dense.begin(), dense.end(), i) == dense.end();
  }
  spec->qkv_bias = spec->out_bias = reader.Bool("attention_bias", false);
  spec->qk_norm = QkNorm::kEachHead;
  const std::vector<std::string> types = ReadQwenWindows(reader, *spec);
  SLUICE_RETURN_IF_ERROR(reader.status());
  return SetRotary(config, types, spec);
}

}  // namespace

const Family& Qwen3MoeFamily() {
  static const auto* const kFamily = new Family{
      {"qwen3_moe"}, &DescribeQwen3Moe, &BindLlama, &BindLlamaExpert};
  return *kFamily;
}

}  // namespace sluice
