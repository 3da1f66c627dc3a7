#include "runtime/model/decoder_spec.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "runtime/model/config_reader.h"
#include "runtime/model/json_file.h"
#include "runtime/model/rotary.h"

// Keys, defaults for absent keys and their meaning follow Hugging Face
// transformers' configuration_{llama,mistral,qwen2,opt}.py. The upper bounds
// are far beyond any real model; they keep every product of sizes within 63
// bits.

namespace sluice {
namespace {

using nlohmann::json;

constexpr int32_t kMaxVocab = 1 << 24;
constexpr int32_t kMaxWidth = 1 << 20;
constexpr int32_t kMaxLayers = 1 << 12;
constexpr int32_t kMaxHeads = 1 << 16;
constexpr int32_t kMaxPositions = 1 << 30;
constexpr int32_t kMaxToken = std::numeric_limits<int32_t>::max();

// The defaults of the four families' configuration classes.
struct Defaults {
  int32_t vocab_size, hidden_size, intermediate_size, num_layers, num_heads;
  std::optional<int32_t> num_kv_heads;  // empty: num_heads
  int32_t max_positions;
  std::optional<int32_t> bos, eos;
  bool tied_embeddings;
};

constexpr Defaults kLlama = {32000,        4096, 11008, 32, 32,
                             std::nullopt, 2048, 1,     2,  false};
constexpr Defaults kMistral = {32000, 4096,      14336, 32, 32,
                               8,     4096 * 32, 1,     2,  false};
constexpr Defaults kQwen2 = {151936, 4096,  22016,        32,           32,
                             32,     32768, std::nullopt, std::nullopt, false};
constexpr Defaults kOpt = {50272,        768,  3072, 12, 12,
                           std::nullopt, 2048, 2,    2,  true};

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

// Reads the keys that all families share.
void ReadCommon(ConfigReader& reader, const Defaults& defaults,
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
  spec.sliding_window.assign(spec.num_layers, 0);

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

  for (const char* key : {"quantization_config", "per_layer_config"}) {
    if (reader.Has(key)) {
      reader.Unsupported(key, "(weights or layers of another make)");
    }
  }
}

// Reads head width and KV heads of the rotary families.
void ReadHeads(ConfigReader& reader, const Defaults& defaults, bool must_divide,
               DecoderSpec& spec) {
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
  const std::optional<int32_t> head_dim =
      reader.OptionalInt("head_dim", 1, kMaxHeads);
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

// Reads qwen2's layer_types, or else use_sliding_window and max_window_layers.
// Returns the distinct types.
std::vector<std::string> ReadQwen2Windows(ConfigReader& reader,
                                          DecoderSpec& spec) {
  int32_t window = 0;  // 0: none
  if (reader.Bool("use_sliding_window", false)) {
    window = 4096;
    if (reader.Present("sliding_window")) {
      window =
          reader.OptionalInt("sliding_window", 1, kMaxPositions).value_or(0);
    }
  }

  std::vector<std::string> types(spec.num_layers, "full_attention");
  if (const json* given = reader.OptionalArray("layer_types")) {
    if (given->size() != types.size()) {
      reader.Fail("layer_types",
                  absl::StrCat("must have ", types.size(), " entries, but has ",
                               given->size()));
      return {};
    }
    for (size_t i = 0; i < types.size(); ++i) {
      if (!(*given)[i].is_string()) {
        reader.Fail("layer_types", "must be a list of strings");
        return {};
      }
      types[i] = (*given)[i].get<std::string>();
      if (types[i] == "attention") types[i] = "full_attention";
      if (types[i] != "full_attention" && types[i] != "sliding_attention") {
        reader.Unsupported("layer_types", absl::StrCat("\"", types[i], "\""));
        return {};
      }
      if (types[i] == "sliding_attention" && window == 0) {
        reader.Fail("layer_types",
                    "has \"sliding_attention\", but use_sliding_window is not "
                    "true or sliding_window is null");
        return {};
      }
    }
  } else if (window != 0) {
    const int32_t first = reader.Int("max_window_layers", 28, 0, kMaxToken);
    for (int32_t i = first; i < spec.num_layers; ++i) {
      types[i] = "sliding_attention";
    }
  }
  for (int32_t i = 0; i < spec.num_layers; ++i) {
    if (types[i] == "sliding_attention") spec.sliding_window[i] = window;
  }
  std::sort(types.begin(), types.end());
  types.erase(std::unique(types.begin(), types.end()), types.end());
  return types;
}

// Parses the llama, mistral and qwen2 families.
absl::StatusOr<DecoderSpec> ParseRotaryFamily(const json& config,
                                              const std::string& model_type) {
  const Defaults& defaults = model_type == "llama"     ? kLlama
                             : model_type == "mistral" ? kMistral
                                                       : kQwen2;
  ConfigReader reader(config);
  DecoderSpec spec;
  spec.model_type = model_type;
  ReadCommon(reader, defaults, spec);
  ReadHeads(reader, defaults, model_type == "llama", spec);
  spec.intermediate_size =
      reader.Int("intermediate_size", defaults.intermediate_size, 1, kMaxVocab);
  spec.norm_eps = static_cast<float>(reader.Number("rms_norm_eps", 1e-6, 0, 1));
  spec.activation = ReadActivation(reader, "hidden_act", "silu");

  std::vector<std::string> layer_types = {"full_attention"};
  if (model_type == "llama") {
    spec.qkv_bias = spec.out_bias = reader.Bool("attention_bias", false);
    spec.mlp_bias = reader.Bool("mlp_bias", false);
  } else if (model_type == "mistral") {
    std::optional<int32_t> window = 4096;
    if (reader.Present("sliding_window")) {
      window = reader.OptionalInt("sliding_window", 1, kMaxPositions);
    }
    if (window) {
      spec.sliding_window.assign(spec.num_layers, *window);
      layer_types = {"sliding_attention"};
    }
  } else {
    spec.qkv_bias = true;
    layer_types = ReadQwen2Windows(reader, spec);
  }
  SLUICE_RETURN_IF_ERROR(reader.status());

  spec.attention_scale =
      static_cast<float>(1.0 / std::sqrt(static_cast<double>(spec.head_dim)));
  PositionStretch stretch;
  SLUICE_ASSIGN_OR_RETURN(spec.rotary,
                          ParseRotary(config, spec.head_dim, spec.max_positions,
                                      layer_types, &stretch));
  if (stretch.uncertain) spec.default_positions = spec.max_positions;
  spec.max_positions = std::max(spec.max_positions, stretch.positions);
  return spec;
}

absl::StatusOr<DecoderSpec> ParseOpt(const json& config) {
  ConfigReader reader(config);
  DecoderSpec spec;
  spec.model_type = "opt";
  ReadCommon(reader, kOpt, spec);
  spec.intermediate_size =
      reader.Int("ffn_dim", kOpt.intermediate_size, 1, kMaxVocab);
  spec.embed_dim = reader.OptionalInt("word_embed_proj_dim", 1, kMaxWidth)
                       .value_or(spec.hidden_size);
  if (spec.hidden_size % spec.num_heads != 0) {
    reader.Fail("hidden_size",
                absl::StrCat("must be a multiple of num_attention_heads (",
                             spec.num_heads, "), but is ", spec.hidden_size));
  }
  spec.head_dim = spec.hidden_size / spec.num_heads;
  spec.norm = NormKind::kLayerNorm;
  spec.norm_affine = reader.Bool("layer_norm_elementwise_affine", true);
  spec.norm_eps = 1e-5f;  // torch.nn.LayerNorm's default
  spec.pre_norm = reader.Bool("do_layer_norm_before", true);
  spec.final_norm =
      !reader.Bool("_remove_final_layer_norm", false) && spec.pre_norm;
  spec.activation = ReadActivation(reader, "activation_function", "relu");
  spec.gated_mlp = false;
  spec.qkv_bias = spec.out_bias = spec.mlp_bias =
      reader.Bool("enable_bias", true);
  spec.positions = PositionKind::kLearned;
  spec.position_offset = 2;
  SLUICE_RETURN_IF_ERROR(reader.status());
  spec.attention_scale =
      static_cast<float>(1.0 / std::sqrt(static_cast<double>(spec.head_dim)));
  return spec;
}

}  // namespace

absl::StatusOr<DecoderSpec> ParseDecoderSpec(absl::string_view config_json) {
  SLUICE_ASSIGN_OR_RETURN(const json config, ParseJsonObject(config_json));
  ConfigReader reader(config);
  if (!reader.Has("model_type")) reader.Fail("model_type", "is missing");
  const std::string model_type = reader.String("model_type", "");
  SLUICE_RETURN_IF_ERROR(reader.status());
  if (model_type == "llama" || model_type == "mistral" ||
      model_type == "qwen2") {
    return ParseRotaryFamily(config, model_type);
  }
  if (model_type == "opt") return ParseOpt(config);
  return Unimplemented("model_type \"", model_type.substr(0, 60),
                       "\" is not supported (llama, mistral, opt, qwen2 are)");
}

DType ResolveDType(DTypeChoice choice, const DecoderSpec& spec,
                   bool has_float16) {
  if (choice == DTypeChoice::kFloat32) return DType::kFloat32;
  if (choice == DTypeChoice::kBFloat16) return DType::kBFloat16;
  if (choice == DTypeChoice::kFloat16) return DType::kFloat16;
  return spec.native_dtype == DType::kFloat16 && !has_float16
             ? DType::kBFloat16
             : spec.native_dtype;
}

}  // namespace sluice
