#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "runtime/model/families/config.h"

// Qwen2-MoE and Qwen3-MoE: the attention of Qwen2 and Qwen3; most layers have
// experts, and Qwen2-MoE's one that all rows take, with a factor.

namespace sluice {
namespace {

constexpr ConfigDefaults kQwen2MoeDefaults = {.vocab_size = 151936,
                                              .hidden_size = 2048,
                                              .intermediate_size = 5632,
                                              .num_layers = 24,
                                              .num_heads = 16,
                                              .num_kv_heads = 16,
                                              .max_positions = 32768};
constexpr ConfigDefaults kQwen3MoeDefaults = {.vocab_size = 151936,
                                              .hidden_size = 2048,
                                              .intermediate_size = 6144,
                                              .num_layers = 24,
                                              .num_heads = 32,
                                              .num_kv_heads = 4,
                                              .max_positions = 32768};
constexpr MixtureSpec kQwen2Mixture = {.experts = 60,
                                       .experts_per_token = 4,
                                       .expert_size = 1408,
                                       .shared_score = true};
constexpr MixtureSpec kQwen3Mixture = {
    .experts = 128, .experts_per_token = 8, .expert_size = 768};

// Reads the windows of Qwen2-MoE: of every other one of the first
// max_window_layers layers. Returns the distinct types.
std::vector<std::string> ReadQwen2MoeWindows(ConfigReader& reader,
                                             DecoderSpec& spec) {
  std::vector<std::string> types(spec.num_layers, kFullAttention);
  const bool windows = reader.Bool("use_sliding_window", false);
  const int32_t before = reader.Int("max_window_layers", 28, 0, kMaxToken);
  for (int32_t i = 0; windows && i < spec.num_layers && i < before; i += 2) {
    types[i] = kSlidingAttention;
  }
  types = ReadLayerTypes(reader, std::move(types));
  if (!windows && std::count(types.begin(), types.end(), kSlidingAttention)) {
    reader.Fail("layer_types",
                "has \"sliding_attention\", but use_sliding_window is not "
                "true");
  } else if (windows) {
    ReadSlidingWindow(reader, types, 4096, spec);
  }
  std::sort(types.begin(), types.end());
  types.erase(std::unique(types.begin(), types.end()), types.end());
  return types;
}

// Reads the experts, and which layers have them.
void ReadQwenMixture(ConfigReader& reader, const MixtureSpec& defaults,
                     DecoderSpec& spec) {
  // transformers 5 writes another name for Qwen3-MoE's.
  const char* const experts =
      reader.Has("num_local_experts") ? "num_local_experts" : "num_experts";
  ReadMixture(reader, {experts, "num_experts_per_tok", "moe_intermediate_size"},
              defaults, spec);
  spec.mixture.normalize = reader.Bool("norm_topk_prob", false);
  const int32_t step = reader.Int("decoder_sparse_step", 1, 1, kMaxLayers);
  const std::vector<int32_t> dense =
      reader.OptionalInts("mlp_only_layers", 0, kMaxLayers)
          .value_or(std::vector<int32_t>());
  for (int32_t i = 0; i < spec.num_layers; ++i) {
    spec.layers[i].mixture = (i + 1) % step == 0;
  }
  for (const int32_t i : dense) {
    if (i < spec.num_layers) spec.layers[i].mixture = false;
  }
}

absl::Status DescribeQwen2Moe(const nlohmann::json& config, DecoderSpec* spec) {
  ConfigReader reader(config);
  ReadCommon(reader, kQwen2MoeDefaults, *spec);
  ReadHeads(reader, kQwen2MoeDefaults, /*must_divide=*/false, *spec);
  ReadGatedMlp(reader, kQwen2MoeDefaults, *spec);
  ReadQwenMixture(reader, kQwen2Mixture, *spec);
  spec->mixture.shared_size =
      reader.Int("shared_expert_intermediate_size", 5632, 1, kMaxWidth);
  spec->qkv_bias = reader.Bool("qkv_bias", true);
  const std::vector<std::string> types = ReadQwen2MoeWindows(reader, *spec);
  SLUICE_RETURN_IF_ERROR(reader.status());
  return SetRotary(config, types, spec);
}

absl::Status DescribeQwen3Moe(const nlohmann::json& config, DecoderSpec* spec) {
  ConfigReader reader(config);
  ReadCommon(reader, kQwen3MoeDefaults, *spec);
  ReadHeads(reader, kQwen3MoeDefaults, /*must_divide=*/false, *spec);
  ReadGatedMlp(reader, kQwen3MoeDefaults, *spec);
  ReadQwenMixture(reader, kQwen3Mixture, *spec);
  spec->qkv_bias = spec->out_bias = reader.Bool("attention_bias", false);
  spec->qk_norm = QkNorm::kEachHead;
  std::string type = kFullAttention;
  if (reader.Bool("use_sliding_window", false)) {
    type = ReadWindow(reader, 4096, *spec);
  }
  SLUICE_RETURN_IF_ERROR(reader.status());
  return SetRotary(config, {type}, spec);
}

TensorSlice BindQwen2Moe(const DecoderSpec& spec, TensorRole role, int layer) {
  const auto of_shared = [&](const char* name) -> TensorSlice {
    return {absl::StrCat("model.layers.", layer, ".mlp.shared_expert.", name,
                         "_proj.weight")};
  };
  switch (role) {
    case TensorRole::kSharedGateWeight:
      return of_shared("gate");
    case TensorRole::kSharedUpWeight:
      return of_shared("up");
    case TensorRole::kSharedDownWeight:
      return of_shared("down");
    default:
      return BindLlama(spec, role, layer);
  }
}

}  // namespace

const Family& Qwen2MoeFamily() {
  static const auto* const kFamily = new Family{
      {"qwen2_moe"}, &DescribeQwen2Moe, &BindQwen2Moe, &BindLlamaExpert};
  return *kFamily;
}

const Family& Qwen3MoeFamily() {
  static const auto* const kFamily = new Family{
      {"qwen3_moe"}, &DescribeQwen3Moe, &BindLlama, &BindLlamaExpert};
  return *kFamily;
}

}  // namespace sluice
