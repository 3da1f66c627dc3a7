#include "runtime/model/families/config.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "runtime/model/rotary.h"

namespace sluice {
namespace {

using nlohmann::json;

DType ReadDType(ConfigReader& reader) {
  const char* key = reader.Has("dtype") ? "dtype" : "torch_dtype";
  if (!reader.Has(key)) return DType::kFloat32;
  std::string name = reader.String(key, "float32");
  if (name.rfind("torch.", 0) == 0) name = name.substr(6);
  if (name == "float32" || name == "float") return DType::kFloat32;
  if (name == "bfloat16") return DType::kBFloat16;
  if (name == "float16" || name == "half") return DType::kFloat16;
  reader.Unsupported(key, absl::StrCat("\"", name, "\""));
  return DType::kFloat32;
}

}  // namespace

Activation ReadActivation(ConfigReader& reader, const char* key,
                          const char* fallback) {
  const std::string name = reader.String(key, fallback);
  if (name == "silu" || name == "swish") return Activation::kSilu;
  if (name == "relu") return Activation::kRelu;
  if (name == "gelu" || name == "gelu_python") return Activation::kGelu;
  // All of these are the tanh approximation, written differently.
  if (name == "gelu_new" || name == "gelu_pytorch_tanh" ||
      name == "gelu_python_tanh" || name == "gelu_fast" ||
      name == "gelu_accurate") {
    return Activation::kGeluTanh;
  }
  reader.Unsupported(key, absl::StrCat("\"", name, "\""));
  return Activation::kSilu;
}

void ReadCommon(ConfigReader& reader, const ConfigDefaults& defaults,
                DecoderSpec& spec) {
  spec.vocab_size = reader.Int("vocab_size", defaults.vocab_size, 1, kMaxVocab);
  spec.hidden_size =
      reader.Int("hidden_size", defaults.hidden_size, 1, kMaxWidth);
  spec.embed_dim = spec.hidden_size;
  spec.num_layers =
      reader.Int("num_hidden_layers", defaults.num_layers, 1, kMaxLayers);
  spec.num_heads =
      reader.Int("num_attention_heads", defaults.num_heads, 1, kMaxHeads);
  spec.num_kv_heads = spec.num_heads;
  spec.max_positions = reader.Int("max_position_embeddings",
                                  defaults.max_positions, 1, kMaxPositions);
  spec.tied_embeddings =
      reader.Bool("tie_word_embeddings", defaults.tied_embeddings);
  spec.native_dtype = ReadDType(reader);
  spec.layers.assign(spec.num_layers, {});

  // An explicit null means none; only an absent key means the default.
  std::optional<int32_t> bos = defaults.bos;
  if (reader.Present("bos_token_id")) {
    bos = reader.OptionalInt("bos_token_id", -1, kMaxToken);
  }
  spec.bos_token_id = bos.value_or(-1);
  if (reader.Present("eos_token_id")) {
    spec.eos_token_ids = reader.OptionalInts("eos_token_id", -1, kMaxToken)
                             .value_or(std::vector<int32_t>());
    std::erase(spec.eos_token_ids, -1);
  } else if (defaults.eos) {
    spec.eos_token_ids = {*defaults.eos};
  }

  if (reader.Has("per_layer_config")) {
    reader.Unsupported("per_layer_config", "(layers of another make)");
  }
}

void ReadHeads(ConfigReader& reader, const ConfigDefaults& defaults,
               bool must_divide, DecoderSpec& spec) {
  if (reader.Present("num_key_value_heads")) {
    spec.num_kv_heads = reader.OptionalInt("num_key_value_heads", 1, kMaxHeads)
                            .value_or(spec.num_heads);
  } else {
    spec.num_kv_heads = defaults.num_kv_heads.value_or(spec.num_heads);
  }
  if (spec.num_heads % spec.num_kv_heads != 0) {
    reader.Fail("num_key_value_heads",
                absl::StrCat("must divide num_attention_heads (",
                             spec.num_heads, "), but is ", spec.num_kv_heads));
  }
  std::optional<int32_t> head_dim = defaults.head_dim;
  if (reader.Present("head_dim")) {
    head_dim = reader.OptionalInt("head_dim", 1, kMaxHeads);
  }
  spec.head_dim = head_dim.value_or(spec.hidden_size / spec.num_heads);
  if (!head_dim && (spec.head_dim == 0 ||
                    (must_divide && spec.hidden_size % spec.num_heads != 0))) {
    reader.Fail("hidden_size",
                absl::StrCat("must be a multiple of num_attention_heads (",
                             spec.num_heads, "), but is ", spec.hidden_size));
  }
  if (int64_t{spec.num_heads} * spec.head_dim > kMaxWidth) {
    reader.Fail("num_attention_heads",
                absl::StrCat("times head_dim must be at most ", kMaxWidth));
  }
}

void ReadEqualHeads(ConfigReader& reader, DecoderSpec& spec) {
  spec.num_kv_heads = spec.num_heads;
  spec.head_dim = spec.hidden_size / spec.num_heads;
  if (spec.hidden_size % spec.num_heads != 0) {
    reader.Fail("hidden_size",
                absl::StrCat("must be a multiple of num_attention_heads (",
                             spec.num_heads, "), but is ", spec.hidden_size));
  }
}

void ReadPlainMlp(ConfigReader& reader, const ConfigDefaults& defaults,
                  const char* activation_key, const char* activation,
                  DecoderSpec& spec) {
  spec.norm = NormKind::kLayerNorm;
  spec.gated_mlp = false;
  spec.intermediate_size = defaults.intermediate_size > 0
                               ? defaults.intermediate_size
                               : 4 * spec.hidden_size;
  if (const auto width =
          reader.OptionalInt("intermediate_size", 1, kMaxVocab)) {
    spec.intermediate_size = *width;
  }
  spec.activation = ReadActivation(reader, activation_key, activation);
}

std::vector<ConfigReader::Alias> GptAliases() {
  return {{"hidden_size", "n_embd"},
          {"num_hidden_layers", "n_layer"},
          {"num_attention_heads", "n_head"},
          {"max_position_embeddings", "n_positions"},
          {"intermediate_size", "n_inner"}};
}

void ReadGatedMlp(ConfigReader& reader, const ConfigDefaults& defaults,
                  DecoderSpec& spec) {
  spec.intermediate_size =
      reader.Int("intermediate_size", defaults.intermediate_size, 1, kMaxVocab);
  spec.norm_eps = static_cast<float>(reader.Number("rms_norm_eps", 1e-6, 0, 1));
  spec.activation = ReadActivation(reader, "hidden_act", "silu");
}

std::vector<std::string> ReadLayerTypes(ConfigReader& reader,
                                        std::vector<std::string> fallback) {
  const json* given = reader.OptionalArray("layer_types");
  if (given == nullptr) return fallback;
  std::vector<std::string> types = std::move(fallback);
  if (given->size() != types.size()) {
    reader.Fail("layer_types",
                absl::StrCat("must have ", types.size(), " entries, but has ",
                             given->size()));
    return types;
  }
  for (size_t i = 0; i < types.size(); ++i) {
    if (!(*given)[i].is_string()) {
      reader.Fail("layer_types", "must be a list of strings");
      return types;
    }
    std::string type = (*given)[i].get<std::string>();
    if (type == "attention") type = kFullAttention;
    if (type != kFullAttention && type != kSlidingAttention) {
      reader.Unsupported("layer_types", absl::StrCat("\"", type, "\""));
      return types;
    }
    types[i] = std::move(type);
  }
  return types;
}

std::vector<std::string> EveryNthFull(int32_t layers, int32_t period) {
  std::vector<std::string> types;
  for (int32_t i = 1; i <= layers; ++i) {
    types.push_back(i % period == 0 ? kFullAttention : kSlidingAttention);
  }
  return types;
}

void ReadSlidingWindow(ConfigReader& reader,
                       const std::vector<std::string>& types,
                       std::optional<int32_t> fallback, DecoderSpec& spec) {
  std::optional<int32_t> window = fallback;
  if (reader.Present("sliding_window")) {
    window = reader.OptionalInt("sliding_window", 1, kMaxPositions);
  }
  for (size_t i = 0; i < types.size() && i < spec.layers.size(); ++i) {
    if (types[i] != kSlidingAttention) continue;
    if (!window) {
      reader.Fail("sliding_window",
                  "must not be null where layers are \"sliding_attention\"");
      return;
    }
    spec.layers[i].window = *window;
  }
}

std::vector<std::string> ReadQwenWindows(ConfigReader& reader,
                                         DecoderSpec& spec) {
  int32_t window = 0;  // 0: none
  if (reader.Bool("use_sliding_window", false)) {
    window = 4096;
    if (reader.Present("sliding_window")) {
      window =
          reader.OptionalInt("sliding_window", 1, kMaxPositions).value_or(0);
    }
  }

  std::vector<std::string> types(spec.num_layers, kFullAttention);
  const bool given = reader.Has("layer_types");
  if (!given && window != 0) {
    const int32_t first = reader.Int("max_window_layers", 28, 0, kMaxToken);
    for (int32_t i = first; i < spec.num_layers; ++i) {
      types[i] = kSlidingAttention;
    }
  }
  types = ReadLayerTypes(reader, std::move(types));
  if (given && window == 0 &&
      std::count(types.begin(), types.end(), kSlidingAttention) > 0) {
    reader.Fail("layer_types",
                "has \"sliding_attention\", but use_sliding_window is not "
                "true or sliding_window is null");
    return {};
  }
  for (int32_t i = 0; i < spec.num_layers; ++i) {
    if (types[i] == kSlidingAttention) spec.layers[i].window = window;
  }
  std::sort(types.begin(), types.end());
  types.erase(std::unique(types.begin(), types.end()), types.end());
  return types;
}

std::string ReadWindow(ConfigReader& reader, std::optional<int32_t> fallback,
                       DecoderSpec& spec) {
  std::optional<int32_t> window = fallback;
  if (reader.Present("sliding_window")) {
    window = reader.OptionalInt("sliding_window", 1, kMaxPositions);
  }
  if (!window) return kFullAttention;
  for (LayerSpec& layer : spec.layers) layer.window = *window;
  return kSlidingAttention;
}

int32_t ReadRotaryDim(ConfigReader& reader, double fallback,
                      const DecoderSpec& spec) {
  constexpr char kKey[] = "partial_rotary_factor";
  double factor = reader.Number(kKey, fallback, 0, 1);
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const json* const settings = reader.OptionalObject(key);
    if (settings == nullptr) continue;
    const auto it = settings->find(kKey);
    if (it != settings->end() && it->is_number()) factor = it->get<double>();
  }
  if (!(factor <= 1 && spec.head_dim * factor >= 2)) {
    reader.Fail(kKey,
                absl::StrCat("must be at most 1, and leave at least 2 of ",
                             spec.head_dim, " dimensions"));
    return 2;
  }
  return static_cast<int32_t>(spec.head_dim * factor);
}

namespace {

absl::Status AddRotary(const json& config,
                       const std::vector<std::string>& layer_types,
                       const RotaryDefaults& defaults, DecoderSpec* spec,
                       PositionStretch* stretch) {
  SLUICE_ASSIGN_OR_RETURN(
      spec->rotaries.emplace_back(),
      ParseRotary(config,
                  {.dim = defaults.dim > 0 ? defaults.dim : spec->head_dim,
                   .partial = defaults.dim > 0,
                   .max_positions = spec->max_positions,
                   .theta = defaults.theta},
                  layer_types, stretch));
  return absl::OkStatus();
}

void SetPositions(const PositionStretch& stretch, DecoderSpec* spec) {
  spec->attention_scale =
      static_cast<float>(1.0 / std::sqrt(static_cast<double>(spec->head_dim)));
  if (stretch.uncertain) spec->default_positions = spec->max_positions;
  spec->max_positions = std::max(spec->max_positions, stretch.positions);
  if (stretch.limit > 0) {
    spec->max_positions = std::min(spec->max_positions, stretch.limit);
  }
}

// Returns the config of the layers of one type, with settings that are not
// nested.
absl::StatusOr<json> ConfigOfType(const json& config, const std::string& type,
                                  const char* sliding_theta_key) {
  constexpr char kScaling[] = "rope_scaling", kParameters[] = "rope_parameters";
  constexpr char kTheta[] = "rope_theta";
  json own = config;
  ConfigReader reader(config);
  const json* const parameters = reader.OptionalObject(kParameters);
  SLUICE_RETURN_IF_ERROR(reader.status());
  if (parameters != nullptr && !parameters->empty()) {
    own.erase(kScaling);
    for (const json& nested : *parameters) {
      if (nested.is_object() || nested.is_null()) continue;
      return InvalidArgument(kParameters, " must be nested by the types of ",
                             "layers, as {\"", kFullAttention, "\": {...}}");
    }
    const auto it = parameters->find(type);
    own[kParameters] =
        it == parameters->end() || it->is_null() ? json::object() : json(*it);
  }
  if (type == kSlidingAttention) {
    own.erase(kScaling);
    own.erase(kTheta);
    const auto it = config.find(sliding_theta_key);
    if (it != config.end()) own[kTheta] = *it;
  }
  return own;
}

}  // namespace

absl::Status SetRotary(const json& config,
                       const std::vector<std::string>& layer_types,
                       DecoderSpec* spec, const RotaryDefaults& defaults) {
  PositionStretch stretch;
  SLUICE_RETURN_IF_ERROR(
      AddRotary(config, layer_types, defaults, spec, &stretch));
  SetPositions(stretch, spec);
  return absl::OkStatus();
}

absl::Status SetRotaryByType(const json& config,
                             const std::vector<std::string>& types,
                             const char* sliding_theta_key, double full_theta,
                             double sliding_theta, DecoderSpec* spec) {
  PositionStretch stretch;
  for (const char* type : {kSlidingAttention, kFullAttention}) {
    if (std::count(types.begin(), types.end(), type) == 0) continue;
    const bool full = absl::string_view(type) == kFullAttention;
    SLUICE_ASSIGN_OR_RETURN(const json own,
                            ConfigOfType(config, type, sliding_theta_key));
    SLUICE_RETURN_IF_ERROR(AddRotary(
        own, {}, {.theta = full ? full_theta : sliding_theta}, spec, &stretch));
    for (size_t i = 0; i < types.size(); ++i) {
      if (types[i] != type) continue;
      spec->layers[i].rotary = static_cast<int32_t>(spec->rotaries.size()) - 1;
    }
  }
  SetPositions(stretch, spec);
  return absl::OkStatus();
}

namespace {

// Returns where Q, K or V lie in a tensor that has all three, or their biases;
// nullopt for another role.
std::optional<TensorSlice> GroupedQkv(const DecoderSpec& spec, TensorRole role,
                                      const std::string& name) {
  using Role = TensorRole;
  const int64_t head = spec.head_dim;
  const int64_t group = spec.num_heads / spec.num_kv_heads;
  TensorSlice slice = {.name = name + ".weight"};
  slice.tensor_rows = (spec.num_heads + 2 * spec.num_kv_heads) * head;
  slice.block_rows = head;
  slice.block_stride = (group + 2) * head;
  switch (role) {
    case Role::kQBias:
    case Role::kKBias:
    case Role::kVBias:
      slice.name = name + ".bias";
      break;
    case Role::kQWeight:
    case Role::kKWeight:
    case Role::kVWeight:
      break;
    default:
      return std::nullopt;
  }
  if (role == Role::kQWeight || role == Role::kQBias) {
    slice.block_rows = group * head;
  } else {
    const bool is_v = role == Role::kVWeight || role == Role::kVBias;
    slice.first_row = (group + (is_v ? 1 : 0)) * head;
  }
  return slice;
}

}  // namespace

TensorSlice BindNeox(const NeoxNames& names, const DecoderSpec& spec,
                     TensorRole role, int layer) {
  using Role = TensorRole;
  const auto of_layer = [&](absl::string_view name) -> TensorSlice {
    return {absl::StrCat(names.layers, ".", layer, ".", name)};
  };
  const std::string attention = of_layer(names.attention).name;
  if (const auto qkv = GroupedQkv(spec, role, attention + ".query_key_value")) {
    return *qkv;
  }
  switch (role) {
    case Role::kOutWeight:
      return {attention + ".dense.weight"};
    case Role::kOutBias:
      return {attention + ".dense.bias"};
    case Role::kUpWeight:
      return of_layer("mlp.dense_h_to_4h.weight");
    case Role::kUpBias:
      return of_layer("mlp.dense_h_to_4h.bias");
    case Role::kDownWeight:
      return of_layer("mlp.dense_4h_to_h.weight");
    case Role::kDownBias:
      return of_layer("mlp.dense_4h_to_h.bias");
    case Role::kFinalNormWeight:
      return {absl::StrCat(names.final_norm, ".weight")};
    case Role::kFinalNormBias:
      return {absl::StrCat(names.final_norm, ".bias")};
    case Role::kEmbedding:
      return {absl::StrCat(names.embedding, ".weight")};
    case Role::kHead:
      return {absl::StrCat(spec.tied_embeddings ? names.embedding : names.head,
                           ".weight")};
    case Role::kNorm1Weight:
      return of_layer("input_layernorm.weight");
    case Role::kNorm1Bias:
      return of_layer("input_layernorm.bias");
    case Role::kNorm2Weight:
      return of_layer("post_attention_layernorm.weight");
    case Role::kNorm2Bias:
      return of_layer("post_attention_layernorm.bias");
    default:
      return BindLlama(spec, role, layer);
  }
}

TensorSlice BindGpt(const DecoderSpec& spec, TensorRole role, int layer) {
  using Role = TensorRole;
  switch (role) {
    case Role::kNorm1Weight:
      return {absl::StrCat("transformer.h.", layer, ".ln_1.weight")};
    case Role::kNorm1Bias:
      return {absl::StrCat("transformer.h.", layer, ".ln_1.bias")};
    case Role::kEmbedding:
      return {"transformer.wte.weight"};
    case Role::kFinalNormWeight:
      return {"transformer.ln_f.weight"};
    case Role::kFinalNormBias:
      return {"transformer.ln_f.bias"};
    case Role::kHead:
      if (spec.tied_embeddings) return {"transformer.wte.weight"};
      break;
    default:
      break;
  }
  return BindLlama(spec, role, layer);
}

TensorSlice BindLlama(const DecoderSpec& spec, TensorRole role, int layer) {
  using Role = TensorRole;
  const auto of_layer = [&](const char* name) -> TensorSlice {
    return {absl::StrCat("model.layers.", layer, ".", name)};
  };
  switch (role) {
    case Role::kNorm1Weight:
      return of_layer("input_layernorm.weight");
    case Role::kNorm1Bias:
      return of_layer("input_layernorm.bias");
    case Role::kQWeight:
      return of_layer("self_attn.q_proj.weight");
    case Role::kQBias:
      return of_layer("self_attn.q_proj.bias");
    case Role::kKWeight:
      return of_layer("self_attn.k_proj.weight");
    case Role::kKBias:
      return of_layer("self_attn.k_proj.bias");
    case Role::kVWeight:
      return of_layer("self_attn.v_proj.weight");
    case Role::kVBias:
      return of_layer("self_attn.v_proj.bias");
    case Role::kQNormWeight:
      return of_layer("self_attn.q_norm.weight");
    case Role::kKNormWeight:
      return of_layer("self_attn.k_norm.weight");
    case Role::kOutNormWeight:
      return of_layer("post_attention_layernorm.weight");
    case Role::kDownNormWeight:
      return of_layer("post_feedforward_layernorm.weight");
    case Role::kOutWeight:
      return of_layer("self_attn.o_proj.weight");
    case Role::kOutBias:
      return of_layer("self_attn.o_proj.bias");
    case Role::kNorm2Weight:
      return of_layer("post_attention_layernorm.weight");
    case Role::kNorm2Bias:
      return of_layer("post_attention_layernorm.bias");
    case Role::kGateWeight:
      return of_layer("mlp.gate_proj.weight");
    case Role::kGateBias:
      return of_layer("mlp.gate_proj.bias");
    case Role::kUpWeight:
      return of_layer("mlp.up_proj.weight");
    case Role::kUpBias:
      return of_layer("mlp.up_proj.bias");
    case Role::kDownWeight:
      return of_layer("mlp.down_proj.weight");
    case Role::kDownBias:
      return of_layer("mlp.down_proj.bias");
    case Role::kEmbedding:
      return {"model.embed_tokens.weight"};
    case Role::kFinalNormWeight:
      return {"model.norm.weight"};
    case Role::kFinalNormBias:
      return {"model.norm.bias"};
    case Role::kHead:
      return {spec.tied_embeddings ? "model.embed_tokens.weight"
                                   : "lm_head.weight"};
    case Role::kHeadBias:
      return {"lm_head.bias"};
    case Role::kSinks:
      return of_layer("self_attn.sinks");
    case Role::kRouterWeight:
      return of_layer("mlp.gate.weight");
    case Role::kRouterBias:
      return of_layer("mlp.gate.bias");
    case Role::kChoiceBias:
      return of_layer("mlp.gate.e_score_correction_bias");
    case Role::kSharedGateWeight:
      return of_layer("mlp.shared_experts.gate_proj.weight");
    case Role::kSharedUpWeight:
      return of_layer("mlp.shared_experts.up_proj.weight");
    case Role::kSharedDownWeight:
      return of_layer("mlp.shared_experts.down_proj.weight");
    case Role::kSharedScoreWeight:
      return of_layer("mlp.shared_expert_gate.weight");
    case Role::kExpertGateWeight:
    case Role::kExpertGateBias:
    case Role::kExpertUpWeight:
    case Role::kExpertUpBias:
    case Role::kExpertDownWeight:
    case Role::kExpertDownBias:
    case Role::kPositionEmbedding:
    case Role::kEmbedNormWeight:
    case Role::kEmbedNormBias:
    case Role::kProjectIn:
    case Role::kProjectOut:
      break;
  }
  return {"(none)"};
}

TensorSlice BindLlamaExpert(const DecoderSpec& spec, TensorRole role, int layer,
                            int expert) {
  using Role = TensorRole;
  const auto of_expert = [&](const char* name) -> TensorSlice {
    return {
        absl::StrCat("model.layers.", layer, ".mlp.experts.", expert, name)};
  };
  switch (role) {
    case Role::kExpertGateWeight:
      return of_expert(".gate_proj.weight");
    case Role::kExpertGateBias:
      return of_expert(".gate_proj.bias");
    case Role::kExpertUpWeight:
      return of_expert(".up_proj.weight");
    case Role::kExpertUpBias:
      return of_expert(".up_proj.bias");
    case Role::kExpertDownWeight:
      return of_expert(".down_proj.weight");
    case Role::kExpertDownBias:
      return of_expert(".down_proj.bias");
    default:
      return BindLlama(spec, role, layer);
  }
}

void ReadMixture(ConfigReader& reader, const MixtureKeys& keys,
                 const MixtureSpec& defaults, DecoderSpec& spec) {
  MixtureSpec& mixture = spec.mixture;
  mixture = defaults;
  mixture.experts = reader.Int(keys.experts, defaults.experts, 1, kMaxExperts);
  mixture.experts_per_token =
      reader.Int(keys.per_token, defaults.experts_per_token, 1, kMaxExperts);
  mixture.expert_size =
      reader.Int(keys.expert_size, defaults.expert_size, 1, kMaxWidth);
  if (mixture.experts_per_token > mixture.experts) {
    reader.Fail(
        keys.per_token,
        absl::StrCat("is ", mixture.experts_per_token, ", but there are ",
                     mixture.experts, " experts (", keys.experts, ")"));
  }
  if (int64_t{mixture.experts} * mixture.expert_size > kMaxExpertWidths) {
    reader.Fail(keys.expert_size,
                absl::StrCat("times ", keys.experts, " (", mixture.experts,
                             ") must be at most ", kMaxExpertWidths,
                             ", but it is ", mixture.expert_size));
  }
}

void ReadSharedExperts(ConfigReader& reader, const char* key, int32_t fallback,
                       DecoderSpec& spec) {
  MixtureSpec& mixture = spec.mixture;
  const int32_t shared = reader.Int(key, fallback, 0, kMaxExperts);
  if (int64_t{shared} * mixture.expert_size > kMaxWidth) {
    reader.Fail(key, absl::StrCat("times the experts' size must be at most ",
                                  kMaxWidth));
    return;
  }
  mixture.shared_size = shared * mixture.expert_size;
}

void ReadExpertGroups(ConfigReader& reader, DecoderSpec& spec) {
  MixtureSpec& mixture = spec.mixture;
  mixture.groups = reader.Int("n_group", 1, 1, kMaxExperts);
  mixture.chosen_groups = reader.Int("topk_group", 1, 1, kMaxExperts);
  if (mixture.experts % mixture.groups != 0) {
    reader.Fail("n_group",
                absl::StrCat("must divide the number of experts (",
                             mixture.experts, "), but is ", mixture.groups));
  } else if (mixture.chosen_groups > mixture.groups ||
             mixture.experts / mixture.groups * mixture.chosen_groups <
                 mixture.experts_per_token) {
    reader.Fail(
        "topk_group",
        absl::StrCat("is ", mixture.chosen_groups, " of ", mixture.groups,
                     " groups (n_group), which must be ", "there and have ",
                     mixture.experts_per_token, " experts"));
  }
}

}  // namespace sluice
