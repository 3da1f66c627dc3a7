#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "runtime/model/families/config.h"
#include "runtime/model/rotary.h"

// Gemma, Gemma 2 and the text of Gemma 3.

namespace sluice {
namespace {

constexpr ConfigDefaults kGemmaDefaults = {.vocab_size = 256000,
                                           .hidden_size = 3072,
                                           .intermediate_size = 24576,
                                           .num_layers = 28,
                                           .num_heads = 16,
                                           .num_kv_heads = 16,
                                           .max_positions = 8192,
                                           .bos = 2,
                                           .eos = 1,
                                           .tied_embeddings = true,
                                           .head_dim = 256};

constexpr ConfigDefaults Gemma2Defaults(int32_t vocab, int32_t positions) {
  ConfigDefaults defaults = kGemmaDefaults;
  defaults.vocab_size = vocab;
  defaults.hidden_size = 2304;
  defaults.intermediate_size = 9216;
  defaults.num_layers = 26;
  defaults.num_heads = 8;
  defaults.num_kv_heads = 4;
  defaults.max_positions = positions;
  return defaults;
}

// The keys that are read of a whole model's config.json where that of its text
// does not have them.
constexpr const char* kSharedKeys[] = {"bos_token_id", "eos_token_id", "dtype",
                                       "torch_dtype"};

// A factor of the family that must not be 0.
float Cap(ConfigReader& reader, const char* key,
          std::optional<double> fallback) {
  if (reader.Present(key)) fallback = reader.OptionalNumber(key, 1e-3, 1e9);
  return static_cast<float>(fallback.value_or(0));
}

absl::Status DescribeText(const nlohmann::json& config, DecoderSpec* spec) {
  const bool first = spec->model_type == "gemma";
  const bool second = spec->model_type == "gemma2";
  const ConfigDefaults defaults = first    ? kGemmaDefaults
                                  : second ? Gemma2Defaults(256000, 8192)
                                           : Gemma2Defaults(262208, 131072);
  ConfigReader reader(config);
  ReadCommon(reader, defaults, *spec);
  ReadHeads(reader, defaults, /*must_divide=*/true, *spec);
  ReadGatedMlp(reader, defaults, *spec);
  // The first Gemma's files have "gelu" there, which never was meant.
  spec->activation = Activation::kGeluTanh;
  if (reader.Has("hidden_activation")) {
    spec->activation =
        ReadActivation(reader, "hidden_activation", "gelu_pytorch_tanh");
  }
  spec->qkv_bias = spec->out_bias = reader.Bool("attention_bias", false);
  spec->embedding_scale = std::sqrt(static_cast<float>(spec->hidden_size));
  if (first) {
    SLUICE_RETURN_IF_ERROR(reader.status());
    return SetRotary(config, {kFullAttention}, spec);
  }
  spec->norm_place = NormPlace::kInputAndOutput;
  if (reader.Has("use_bidirectional_attention") &&
      reader.Bool("use_bidirectional_attention", false)) {
    reader.Unsupported("use_bidirectional_attention", "true");
  }
  const int32_t period =
      second ? 2 : reader.Int("sliding_window_pattern", 6, 1, kMaxLayers);
  const std::vector<std::string> types =
      ReadLayerTypes(reader, EveryNthFull(spec->num_layers, period));
  ReadSlidingWindow(reader, types, 4096, *spec);
  spec->logit_cap = Cap(reader, "final_logit_softcapping",
                        second ? std::optional<double>(30) : std::nullopt);
  // Gemma 3's code knows the key, and does not use it.
  if (second) spec->attention_cap = Cap(reader, "attn_logit_softcapping", 50);
  const double scalar = reader.Number("query_pre_attn_scalar", 256, 1e-6, 1e9);
  SLUICE_RETURN_IF_ERROR(reader.status());
  if (second) {
    SLUICE_RETURN_IF_ERROR(SetRotary(config, {}, spec));
  } else {
    spec->qk_norm = QkNorm::kEachHead;
    SLUICE_RETURN_IF_ERROR(SetRotaryByType(
        config, types, "rope_local_base_freq", 1000000, 10000, spec));
  }
  spec->attention_scale = static_cast<float>(1 / std::sqrt(scalar));
  return absl::OkStatus();
}

absl::Status DescribeGemma(const nlohmann::json& config, DecoderSpec* spec) {
  if (spec->model_type != "gemma3") return DescribeText(config, spec);
  ConfigReader reader(config);
  const nlohmann::json* const text = reader.OptionalObject(kTextConfig);
  SLUICE_RETURN_IF_ERROR(reader.status());
  nlohmann::json own = text == nullptr ? nlohmann::json::object() : *text;
  for (const char* key : kSharedKeys) {
    const auto it = config.find(key);
    if (it != config.end() && !it->is_null()) own[key] = *it;
  }
  return DescribeText(own, spec);
}

TensorSlice BindGemma(const DecoderSpec& spec, TensorRole role, int layer) {
  TensorSlice slice = BindLlama(spec, role, layer);
  if (role == TensorRole::kNorm2Weight && spec.norms_outputs()) {
    slice.name = absl::StrCat("model.layers.", layer,
                              ".pre_feedforward_layernorm.weight");
  }
  // Norms have 1 + weight for a weight.
  switch (role) {
    case TensorRole::kNorm1Weight:
    case TensorRole::kNorm2Weight:
    case TensorRole::kQNormWeight:
    case TensorRole::kKNormWeight:
    case TensorRole::kOutNormWeight:
    case TensorRole::kDownNormWeight:
    case TensorRole::kFinalNormWeight:
      slice.add = 1;
      break;
    default:
      break;
  }
  return slice;
}

}  // namespace

const Family& GemmaFamily() {
  static const auto* const kFamily = new Family{
      {"gemma", "gemma2", "gemma3", "gemma3_text"}, &DescribeGemma, &BindGemma};
  return *kFamily;
}

}  // namespace sluice
