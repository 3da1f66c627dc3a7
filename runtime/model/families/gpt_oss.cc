#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "runtime/model/families/config.h"

// gpt-oss: attention with sinks, windows in every other layer, and experts of a
// clamped activation. A layer's experts are one tensor, in which the rows of
// gate and up take turns: of numbers by inputs, or of MXFP4 by outputs.

namespace sluice {
namespace {

constexpr ConfigDefaults kGptOssDefaults = {.vocab_size = 201088,
                                            .hidden_size = 2880,
                                            .intermediate_size = 2880,
                                            .num_layers = 36,
                                            .num_heads = 64,
                                            .num_kv_heads = 8,
                                            .max_positions = 131072,
                                            .head_dim = 64};
constexpr MixtureSpec kGptOssMixture = {.experts = 128,
                                        .experts_per_token = 4,
                                        .expert_size = 2880,
                                        .router = RouterKind::kChosenSoftmax,
                                        .router_bias = true,
                                        .expert_bias = true};

absl::Status DescribeGptOss(const nlohmann::json& config, DecoderSpec* spec) {
  constexpr double kMaxFactor = 1e9;
  ConfigReader reader(config);
  ReadCommon(reader, kGptOssDefaults, *spec);
  ReadHeads(reader, kGptOssDefaults, /*must_divide=*/false, *spec);
  ReadGatedMlp(reader, kGptOssDefaults, *spec);
  spec->norm_eps =
      static_cast<float>(reader.Number("rms_norm_eps", 1e-5, 0, 1));
  ReadMixture(reader,
              {"num_local_experts", "num_experts_per_tok", "intermediate_size"},
              kGptOssMixture, *spec);
  for (LayerSpec& layer : spec->layers) layer.mixture = true;
  spec->gate_limit = static_cast<float>(
      reader.Number("swiglu_limit", 7, 1 / kMaxFactor, kMaxFactor));
  spec->gate_slope = static_cast<float>(
      reader.Number("swiglu_alpha", 1.702, 1 / kMaxFactor, kMaxFactor));
  spec->up_offset = 1;
  spec->attention_sinks = true;
  spec->qkv_bias = spec->out_bias = reader.Bool("attention_bias", true);
  const std::vector<std::string> types =
      ReadLayerTypes(reader, EveryNthFull(spec->num_layers, 2));
  ReadSlidingWindow(reader, types, 128, *spec);
  nlohmann::json own = config;
  if (!reader.Has("rope_scaling") && !reader.Has("rope_parameters")) {
    own["rope_scaling"] = {
        {"rope_type", "yarn"}, {"factor", 32},
        {"beta_fast", 32},     {"beta_slow", 1},
        {"truncate", false},   {"original_max_position_embeddings", 4096}};
  }
  SLUICE_RETURN_IF_ERROR(reader.status());
  return SetRotary(own, {}, spec, {.theta = 150000});
}

TensorSlice BindGptOss(const DecoderSpec& spec, TensorRole role, int layer) {
  switch (role) {
    case TensorRole::kRouterWeight:
      return {absl::StrCat("model.layers.", layer, ".mlp.router.weight")};
    case TensorRole::kRouterBias:
      return {absl::StrCat("model.layers.", layer, ".mlp.router.bias")};
    default:
      return BindLlama(spec, role, layer);
  }
}

TensorSlice BindGptOssExpert(const DecoderSpec& spec, TensorRole role,
                             int layer, int expert) {
  const MixtureSpec& mixture = spec.mixture;
  TensorSlice slice = {.stack = mixture.experts, .in_stack = expert};
  const auto of_layer = [&](const char* name) {
    slice.name = absl::StrCat("model.layers.", layer, ".mlp.experts.", name);
  };
  switch (role) {
    case TensorRole::kExpertDownWeight:
      of_layer("down_proj");
      slice.transposed = true;
      return slice;
    case TensorRole::kExpertDownBias:
      of_layer("down_proj_bias");
      return slice;
    case TensorRole::kExpertGateWeight:
    case TensorRole::kExpertUpWeight:
      of_layer("gate_up_proj");
      slice.transposed = true;
      break;
    default:
      of_layer("gate_up_proj_bias");
      break;
  }
  slice.first_row =
      role == TensorRole::kExpertUpWeight || role == TensorRole::kExpertUpBias
          ? 1
          : 0;
  slice.tensor_rows = 2 * int64_t{mixture.expert_size};
  slice.block_rows = 1;
  slice.block_stride = 2;
  return slice;
}

}  // namespace

const Family& GptOssFamily() {
  static const auto* const kFamily =
      new Family{{"gpt_oss"}, &DescribeGptOss, &BindGptOss, &BindGptOssExpert};
  return *kFamily;
}

}  // namespace sluice
