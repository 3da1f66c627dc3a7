#include <cmath>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "runtime/model/families/config.h"

namespace sluice {
namespace {

constexpr ConfigDefaults kOptDefaults = {.vocab_size = 50272,
                                         .hidden_size = 768,
                                         .intermediate_size = 3072,
                                         .num_layers = 12,
                                         .num_heads = 12,
                                         .max_positions = 2048,
                                         .bos = 2,
                                         .eos = 2,
                                         .tied_embeddings = true};

constexpr absl::string_view kModel = "model.";

TensorSlice BindOpt(const DecoderSpec& spec, TensorRole role, int layer) {
  using Role = TensorRole;
  const auto of_layer = [&](const char* name) -> TensorSlice {
    return {absl::StrCat("model.decoder.layers.", layer, ".", name)};
  };
  switch (role) {
    case Role::kNorm1Weight:
      return of_layer("self_attn_layer_norm.weight");
    case Role::kNorm1Bias:
      return of_layer("self_attn_layer_norm.bias");
    case Role::kOutWeight:
      return of_layer("self_attn.out_proj.weight");
    case Role::kOutBias:
      return of_layer("self_attn.out_proj.bias");
    case Role::kNorm2Weight:
      return of_layer("final_layer_norm.weight");
    case Role::kNorm2Bias:
      return of_layer("final_layer_norm.bias");
    case Role::kUpWeight:
      return of_layer("fc1.weight");
    case Role::kUpBias:
      return of_layer("fc1.bias");
    case Role::kDownWeight:
      return of_layer("fc2.weight");
    case Role::kDownBias:
      return of_layer("fc2.bias");
    case Role::kPositionEmbedding:
      return {"model.decoder.embed_positions.weight"};
    case Role::kProjectIn:
      return {"model.decoder.project_in.weight"};
    case Role::kProjectOut:
      return {"model.decoder.project_out.weight"};
    case Role::kFinalNormWeight:
      return {"model.decoder.final_layer_norm.weight"};
    case Role::kFinalNormBias:
      return {"model.decoder.final_layer_norm.bias"};
    default:
      break;
  }
  // The others lie where llama's do, within "model.decoder".
  TensorSlice slice = BindLlama(spec, role, layer);
  if (absl::StartsWith(slice.name, kModel)) {
    slice.name.replace(0, kModel.size(), "model.decoder.");
  }
  return slice;
}

absl::Status DescribeOpt(const nlohmann::json& config, DecoderSpec* spec) {
  ConfigReader reader(config);
  ReadCommon(reader, kOptDefaults, *spec);
  spec->intermediate_size =
      reader.Int("ffn_dim", kOptDefaults.intermediate_size, 1, kMaxVocab);
  spec->embed_dim = reader.OptionalInt("word_embed_proj_dim", 1, kMaxWidth)
                        .value_or(spec->hidden_size);
  ReadEqualHeads(reader, *spec);
  spec->norm = NormKind::kLayerNorm;
  spec->norm_affine = reader.Bool("layer_norm_elementwise_affine", true);
  spec->norm_eps = 1e-5f;  // torch.nn.LayerNorm's default
  const bool norms_inputs = reader.Bool("do_layer_norm_before", true);
  spec->norm_place = norms_inputs ? NormPlace::kInput : NormPlace::kSum;
  spec->final_norm =
      !reader.Bool("_remove_final_layer_norm", false) && norms_inputs;
  spec->activation = ReadActivation(reader, "activation_function", "relu");
  spec->gated_mlp = false;
  spec->qkv_bias = spec->out_bias = spec->mlp_bias =
      reader.Bool("enable_bias", true);
  spec->positions = PositionKind::kLearned;
  spec->position_offset = 2;
  SLUICE_RETURN_IF_ERROR(reader.status());
  spec->attention_scale =
      static_cast<float>(1.0 / std::sqrt(static_cast<double>(spec->head_dim)));
  return absl::OkStatus();
}

}  // namespace

const Family& OptFamily() {
  static const auto* const kFamily =
      new Family{{"opt"}, &DescribeOpt, &BindOpt};
  return *kFamily;
}

}  // namespace sluice
