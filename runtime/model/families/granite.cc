#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "runtime/model/families/config.h"

namespace sluice {
namespace {

constexpr ConfigDefaults kGraniteDefaults = {.vocab_size = 32000,
                                             .hidden_size = 4096,
                                             .intermediate_size = 11008,
                                             .num_layers = 32,
                                             .num_heads = 32,
                                             .max_positions = 2048,
                                             .bos = 1,
                                             .eos = 2};

constexpr MixtureSpec kGraniteMixture = {.experts = 8,
                                         .experts_per_token = 2,
                                         .expert_size = 11008,
                                         .router = RouterKind::kChosenSoftmax};

// Llama with factors: of the embedding, of what is added to the residual
// stream, of q k, and of the logits. All but that of q k are those of weights.
// "granitemoe" has experts, and "granitemoeshared" one more, which all rows
// take.
absl::Status DescribeGranite(const nlohmann::json& config, DecoderSpec* spec) {
  constexpr double kMaxFactor = 1e9;
  ConfigReader reader(config);
  ReadCommon(reader, kGraniteDefaults, *spec);
  ReadHeads(reader, kGraniteDefaults, /*must_divide=*/true, *spec);
  ReadGatedMlp(reader, kGraniteDefaults, *spec);
  spec->qkv_bias = spec->out_bias = reader.Bool("attention_bias", false);
  if (spec->model_type == "granite") {
    spec->mlp_bias = reader.Bool("mlp_bias", false);
  } else {
    ReadMixture(
        reader,
        {"num_local_experts", "num_experts_per_tok", "intermediate_size"},
        kGraniteMixture, *spec);
    for (LayerSpec& layer : spec->layers) layer.mixture = true;
  }
  if (spec->model_type == "granitemoeshared") {
    spec->mixture.shared_size =
        reader.Int("shared_intermediate_size", 1024, 1, kMaxWidth);
  }
  const auto factor = [&](const char* key) {
    return static_cast<float>(
        reader.Number(key, 1, 1 / kMaxFactor, kMaxFactor));
  };
  spec->embedding_scale = factor("embedding_multiplier");
  spec->residual_scale = factor("residual_multiplier");
  spec->logit_scale = 1 / factor("logits_scaling");
  const float attention_scale = factor("attention_multiplier");
  SLUICE_RETURN_IF_ERROR(reader.status());
  SLUICE_RETURN_IF_ERROR(SetRotary(config, {kFullAttention}, spec));
  spec->attention_scale = attention_scale;
  return absl::OkStatus();
}

TensorSlice BindGranite(const DecoderSpec& spec, TensorRole role, int layer) {
  const int64_t inner = spec.mixture.shared_size;
  const auto of_layer = [&](const char* name, int64_t first, int64_t all) {
    return TensorSlice{
        .name = absl::StrCat("model.layers.", layer, ".", name, ".weight"),
        .first_row = first,
        .tensor_rows = all};
  };
  switch (role) {
    case TensorRole::kRouterWeight:
      return of_layer("block_sparse_moe.router.layer", 0, 0);
    case TensorRole::kSharedGateWeight:
      return of_layer("shared_mlp.input_linear", 0, 2 * inner);
    case TensorRole::kSharedUpWeight:
      return of_layer("shared_mlp.input_linear", inner, 2 * inner);
    case TensorRole::kSharedDownWeight:
      return of_layer("shared_mlp.output_linear", 0, 0);
    default:
      return BindLlama(spec, role, layer);
  }
}

// A layer's experts are one tensor, in which gate comes before up.
TensorSlice BindGraniteExpert(const DecoderSpec& spec, TensorRole role,
                              int layer, int expert) {
  const int64_t inner = spec.mixture.expert_size;
  const bool down = role == TensorRole::kExpertDownWeight;
  return {.name = absl::StrCat("model.layers.", layer, ".block_sparse_moe.",
                               down ? "output" : "input", "_linear.weight"),
          .first_row = role == TensorRole::kExpertUpWeight ? inner : 0,
          .tensor_rows = down ? 0 : 2 * inner,
          .stack = spec.mixture.experts,
          .in_stack = expert};
}

}  // namespace

const Family& GraniteFamily() {
  static const auto* const kFamily =
      new Family{{"granite", "granitemoe", "granitemoeshared"},
                 &DescribeGranite,
                 &BindGranite,
                 &BindGraniteExpert};
  return *kFamily;
}

}  // namespace sluice
