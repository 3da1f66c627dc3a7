#include "runtime/model/checkpoint/gguf/gguf_config.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "common/status_macros.h"
#include "common/text/text.h"
#include "runtime/gguf/gguf_metadata.h"

namespace sluice {
namespace {

using nlohmann::json;

constexpr int64_t kControlToken = 3;  // of tokenizer.ggml.token_type
// Tokens that end an answer wherever a model has them. Metadata names one or
// two; llama.cpp takes these as well (src/llama-vocab.cpp, special_eog_ids).
constexpr absl::string_view kEndsOfAnswers[] = {
    "<|eot_id|>", "<|im_end|>",      "<|end|>",    "<end_of_turn>",
    "<|eom_id|>", "<|endoftext|>",   "<EOT>",      "</s>",
    "<eos>",      "<|end_of_text|>", "<|return|>", "<|call|>"};
// Models with the first of these end a message of several with the second.
constexpr absl::string_view kReturn = "<|return|>", kEnd = "<|end|>";

// Makes a config of metadata. The first error sticks, as in ConfigReader.
class Maker {
 public:
  Maker(const SafetensorsSource& tensors, std::string architecture)
      : tensors_(tensors),
        metadata_(*tensors.gguf()),
        architecture_(std::move(architecture)) {}

  json config = json::object();

  const absl::Status& status() const { return status_; }
  void Fail(absl::Status status) {
    if (status_.ok()) status_ = std::move(status);
  }

  // Keys of the architecture, without its name.
  std::optional<int64_t> Int(const char* key) {
    return Take(metadata_.Int(Key(key)));
  }
  std::optional<double> Number(const char* key) {
    return Take(metadata_.Number(Key(key)));
  }
  std::optional<bool> Bool(const char* key) {
    return Take(metadata_.Bool(Key(key)));
  }
  std::optional<std::string> String(const char* key) {
    return Take(metadata_.String(Key(key)));
  }
  // Returns one number that all layers have.
  std::optional<int64_t> OfLayers(const char* key) {
    const absl::StatusOr<std::vector<int64_t>> values =
        metadata_.Ints(Key(key));
    Fail(values.status());
    if (!values.ok() || values->empty()) return std::nullopt;
    if (std::count(values->begin(), values->end(), values->front()) !=
        static_cast<int64_t>(values->size())) {
      Fail(Unimplemented("metadata ", QuoteForMessage(Key(key)),
                         " has layers of different sizes, which is not "
                         "supported"));
    }
    return values->front();
  }
  int64_t Needed(const char* key, std::optional<int64_t> value) {
    if (!value) {
      Fail(InvalidArgument("metadata ", QuoteForMessage(Key(key)),
                           " is missing"));
    }
    return value.value_or(1);
  }

  std::optional<int64_t> Token(const char* name) {
    return Take(
        metadata_.Int(absl::StrCat("tokenizer.ggml.", name, "_token_id")));
  }

  bool Has(const std::string& tensor) const {
    return tensors_.ShapeOf(tensor).has_value();
  }
  bool HasInLayer(const char* name) const {
    return Has(absl::StrCat("blk.0.", name));
  }

  // Sets a key of the config, if the metadata has one.
  void Copy(const char* to, const char* from) {
    if (const auto number = Number(from)) config[to] = *number;
  }
  void CopyInt(const char* to, const char* from) {
    if (const auto number = Int(from)) config[to] = *number;
  }

  void SetCommon();
  void SetRotary();
  // Sets how many dimensions of a head are rotated, if not all.
  void SetRotaryPart();

  int64_t head_dim() const { return head_dim_; }
  // Returns the model's width by its heads.
  int64_t width_of_head() const { return width_of_head_; }

 private:
  std::string Key(const char* key) const {
    return absl::StrCat(architecture_, ".", key);
  }
  template <typename T>
  std::optional<T> Take(absl::StatusOr<std::optional<T>> value) {
    if (value.ok()) return *value;
    Fail(value.status());
    return std::nullopt;
  }
  void SetTokens();
  void SetType();
  json Factors(const char* tensor);

  const SafetensorsSource& tensors_;
  const GgufMetadata& metadata_;
  const std::string architecture_;
  int64_t head_dim_ = 0;
  int64_t width_of_head_ = 0;
  absl::Status status_;
};

void Maker::SetCommon() {
  const auto embedding = tensors_.ShapeOf("token_embd.weight");
  if (!embedding || embedding->size() != 2) {
    Fail(NotFound("no tensor token_embd.weight"));
    return;
  }
  config["vocab_size"] = embedding->front();
  const int64_t width = Needed("embedding_length", Int("embedding_length"));
  const int64_t heads =
      Needed("attention.head_count", OfLayers("attention.head_count"));
  config["hidden_size"] = width;
  // Layers that predict further tokens come last, and are not used.
  const int64_t blocks = Needed("block_count", Int("block_count"));
  const int64_t further = Int("nextn_predict_layers").value_or(0);
  config["num_hidden_layers"] =
      further < 0 || further > blocks ? int64_t{-1} : blocks - further;
  config["num_attention_heads"] = heads;
  config["num_key_value_heads"] =
      OfLayers("attention.head_count_kv").value_or(heads);
  config["intermediate_size"] =
      Needed("feed_forward_length", OfLayers("feed_forward_length"));
  config["max_position_embeddings"] =
      Needed("context_length", Int("context_length"));
  config["tie_word_embeddings"] = !Has("output.weight");
  if (const auto eps = Number("attention.layer_norm_rms_epsilon")) {
    config["rms_norm_eps"] = *eps;
  } else if (const auto layer_eps = Number("attention.layer_norm_epsilon")) {
    // Families have different names for it.
    for (const char* key :
         {"layer_norm_eps", "layer_norm_epsilon", "norm_epsilon"}) {
      config[key] = *layer_eps;
    }
  }
  const auto key_length = Int("attention.key_length");
  const auto value_length = Int("attention.value_length");
  if (key_length && value_length && *key_length != *value_length) {
    Fail(Unimplemented(
        "metadata ", QuoteForMessage(Key("attention.key_length")), " is not ",
        Key("attention.value_length"), ", which is not supported"));
  }
  width_of_head_ = heads > 0 ? width / heads : 0;
  head_dim_ = key_length.value_or(width_of_head_);
  config["head_dim"] = head_dim_;
  SetTokens();
  SetType();
}

void Maker::SetTokens() {
  const auto bos = Token("bos");
  config["bos_token_id"] = bos ? json(*bos) : json();
  std::vector<int64_t> ends;
  for (const char* name : {"eos", "eot", "eom"}) {
    const auto token = Token(name);
    if (token && std::count(ends.begin(), ends.end(), *token) == 0) {
      ends.push_back(*token);
    }
  }
  const auto tokens = metadata_.Strings("tokenizer.ggml.tokens");
  const auto types = metadata_.Ints("tokenizer.ggml.token_type");
  Fail(tokens.status());
  Fail(types.status());
  if (!status_.ok()) return;
  const bool returns =
      std::count((*tokens)->begin(), (*tokens)->end(), kReturn) > 0;
  for (size_t i = 0; i < (*tokens)->size() && i < types->size(); ++i) {
    const bool ends_text =
        (*types)[i] == kControlToken &&
        std::find(std::begin(kEndsOfAnswers), std::end(kEndsOfAnswers),
                  (**tokens)[i]) != std::end(kEndsOfAnswers) &&
        !(returns && (**tokens)[i] == kEnd);
    const auto token = static_cast<int64_t>(i);
    if (ends_text && std::count(ends.begin(), ends.end(), token) == 0) {
      ends.push_back(token);
    }
  }
  config["eos_token_id"] = ends.empty() ? json() : json(ends);
}

// Weights are computed with in the type that most of them have; quantized ones
// in bfloat16.
void Maker::SetType() {
  std::string most;
  uint64_t bytes = 0;
  for (const auto& [type, of_type] : tensors_.BytesByType()) {
    if (of_type <= bytes) continue;
    most = type;
    bytes = of_type;
  }
  config["torch_dtype"] = most == "F32"   ? "float32"
                          : most == "F16" ? "float16"
                                          : "bfloat16";
}

json Maker::Factors(const char* tensor) {
  const absl::StatusOr<std::vector<float>> factors = tensors_.ReadSmall(tensor);
  Fail(factors.status());
  json list = json::array();
  if (factors.ok()) list = *factors;
  return list;
}

void Maker::SetRotary() {
  Copy("rope_theta", "rope.freq_base");
  if (Int("rope.dimension_sections") || String("rope.sections")) {
    Fail(Unimplemented("metadata ",
                       QuoteForMessage(Key("rope.dimension_sections")),
                       " is not supported"));
  }
  const std::string type = String("rope.scaling.type").value_or("none");
  const auto original = Int("rope.scaling.original_context_length");
  json scaling = json::object();
  if (Has("rope_factors_short.weight")) {
    scaling = {
        {"rope_type", "longrope"},
        {"short_factor", Factors("rope_factors_short.weight")},
        {"attention_factor", Number("rope.scaling.attn_factor").value_or(1)}};
  } else if (Has("rope_freqs.weight")) {
    // The frequencies' divisors, whatever scaling they were made by.
    scaling = {{"rope_type", "longrope"},
               {"short_factor", Factors("rope_freqs.weight")},
               {"attention_factor", 1}};
  } else if (type == "linear" || type == "yarn") {
    scaling["rope_type"] = type;
    scaling["factor"] = Number("rope.scaling.factor").value_or(1);
    if (const auto fast = Number("rope.scaling.yarn_beta_fast")) {
      scaling["beta_fast"] = *fast;
    }
    if (const auto slow = Number("rope.scaling.yarn_beta_slow")) {
      scaling["beta_slow"] = *slow;
    }
  } else if (type != "none") {
    Fail(Unimplemented("metadata ", QuoteForMessage(Key("rope.scaling.type")),
                       " is ", QuoteForMessage(type),
                       ", which is not supported"));
  }
  if (scaling.empty()) return;
  const bool divides = Has("rope_freqs.weight") || type == "linear";
  if (original && !divides) {
    scaling["original_max_position_embeddings"] = *original;
  }
  config["rope_scaling"] = std::move(scaling);
}

void Maker::SetRotaryPart() {
  const auto dim = Int("rope.dimension_count");
  if (!dim || *dim == head_dim_ || head_dim_ == 0) {
    config["partial_rotary_factor"] = 1;
    return;
  }
  // A quarter more, so that what is rounded down is `dim`.
  config["partial_rotary_factor"] =
      (static_cast<double>(*dim) + 0.25) / static_cast<double>(head_dim_);
}

// Biases that a family's config.json tells, and GGUF by having them.
void SetBiases(Maker& maker) {
  maker.config["attention_bias"] =
      maker.HasInLayer("attn_q.bias") || maker.HasInLayer("attn_output.bias");
  maker.config["mlp_bias"] = maker.HasInLayer("ffn_up.bias");
}

bool HasExperts(Maker& maker) {
  return maker.Int("expert_count").value_or(0) > 0;
}

// Sets how many experts there are and how many a row takes; families have two
// names for the one. `normalizes` is what llama.cpp does where metadata does
// not say whether the weights of the chosen add up to 1.
void SetExperts(Maker& maker, bool normalizes) {
  for (const char* key : {"num_local_experts", "num_experts"}) {
    maker.config[key] = maker.Needed("expert_count", maker.Int("expert_count"));
  }
  maker.config["num_experts_per_tok"] =
      maker.Needed("expert_used_count", maker.Int("expert_used_count"));
  maker.config["moe_intermediate_size"] =
      maker.OfLayers("expert_feed_forward_length")
          .value_or(maker.config["intermediate_size"].get<int64_t>());
  maker.config["norm_topk_prob"] =
      maker.Bool("expert_weights_norm").value_or(normalizes);
}

void SetLlama(Maker& maker) {
  SetBiases(maker);
  const auto window = maker.Int("attention.sliding_window");
  if (window.value_or(0) > 0) {
    maker.config["model_type"] = "mistral";
    maker.config["sliding_window"] = *window;
  }
  if (!HasExperts(maker)) return;
  maker.config["model_type"] = "mixtral";
  SetExperts(maker, true);
}

void SetQwen2Moe(Maker& maker) {
  SetExperts(maker, false);
  maker.config["qkv_bias"] = maker.HasInLayer("attn_q.bias");
  maker.config["shared_expert_intermediate_size"] =
      maker.Int("expert_shared_feed_forward_length")
          .value_or(maker.config["intermediate_size"].get<int64_t>());
}

void SetQwen3Moe(Maker& maker) {
  SetBiases(maker);
  SetExperts(maker, true);
}

void SetOlmoe(Maker& maker) {
  SetBiases(maker);
  SetExperts(maker, false);
}

void SetGptOss(Maker& maker) {
  SetBiases(maker);
  SetExperts(maker, true);
  maker.config["intermediate_size"] = maker.config["moe_intermediate_size"];
  maker.CopyInt("sliding_window", "attention.sliding_window");
  // Metadata does not tell that the published models do so.
  const auto scaling = maker.config.find("rope_scaling");
  if (scaling != maker.config.end()) (*scaling)["truncate"] = false;
}

void SetGlm4Moe(Maker& maker) {
  SetBiases(maker);
  SetExperts(maker, true);
  maker.SetRotaryPart();
  maker.config["n_routed_experts"] = maker.config["num_experts"];
  maker.config["use_qk_norm"] = maker.HasInLayer("attn_q_norm.weight");
  maker.CopyInt("n_shared_experts", "expert_shared_count");
  maker.CopyInt("first_k_dense_replace", "leading_dense_block_count");
  maker.CopyInt("n_group", "expert_group_count");
  maker.CopyInt("topk_group", "expert_group_used_count");
  maker.Copy("routed_scaling_factor", "expert_weights_scale");
}

void SetGemma2(Maker& maker) {
  maker.CopyInt("sliding_window", "attention.sliding_window");
  maker.Copy("final_logit_softcapping", "final_logit_softcapping");
  maker.Copy("attn_logit_softcapping", "attn_logit_softcapping");
  // The largest model has a scale of its own, which only its size tells.
  maker.config["query_pre_attn_scalar"] =
      maker.config["num_hidden_layers"] == 46 ? maker.width_of_head()
                                              : maker.head_dim();
}

void SetGemma3(Maker& maker) {
  const auto window = maker.Int("attention.sliding_window");
  maker.config["sliding_window_pattern"] = window ? 6 : 1;
  if (window) maker.config["sliding_window"] = *window;
  maker.Copy("final_logit_softcapping", "final_logit_softcapping");
  maker.Copy("rope_local_base_freq", "rope.freq_base_swa");
  maker.config["query_pre_attn_scalar"] =
      maker.config["num_hidden_layers"] == 62 ? maker.width_of_head()
                                              : maker.head_dim();
}

void SetPhi3(Maker& maker) {
  maker.SetRotaryPart();
  const auto window = maker.Int("attention.sliding_window");
  if (window.value_or(0) > 0) maker.config["sliding_window"] = *window;
}

void SetGranite(Maker& maker) {
  SetBiases(maker);
  maker.Copy("embedding_multiplier", "embedding_scale");
  maker.Copy("residual_multiplier", "residual_scale");
  maker.Copy("attention_multiplier", "attention.scale");
  maker.Copy("logits_scaling", "logit_scale");
}

void SetGraniteMoe(Maker& maker) {
  SetGranite(maker);
  SetExperts(maker, true);
  const auto shared = maker.Int("expert_shared_feed_forward_length");
  if (shared.value_or(0) == 0) return;
  maker.config["model_type"] = "granitemoeshared";
  maker.config["shared_intermediate_size"] = *shared;
}

void SetStarcoder2(Maker& maker) {
  maker.config["use_bias"] = maker.HasInLayer("attn_q.bias");
}

void SetStablelm(Maker& maker) {
  maker.SetRotaryPart();
  maker.config["use_qkv_bias"] = maker.HasInLayer("attn_q.bias");
  maker.config["qk_layernorm"] = maker.HasInLayer("attn_q_norm.weight");
  // What the converter writes where config.json says nothing is not true of
  // models with a norm before the MLP.
  maker.config["use_parallel_residual"] = !maker.HasInLayer("ffn_norm.weight");
}

void SetOlmo2(Maker& maker) {
  SetBiases(maker);
  const auto window = maker.Int("attention.sliding_window");
  if (!window) return;
  maker.config["model_type"] = "olmo3";
  maker.config["sliding_window"] = *window;
}

void SetGlm4(Maker& maker) {
  SetBiases(maker);
  maker.SetRotaryPart();
}

void SetCommandR(Maker& maker) {
  SetBiases(maker);
  maker.Copy("logit_scale", "logit_scale");
  maker.config["use_qk_norm"] = maker.HasInLayer("attn_q_norm.weight");
}

void SetCohere2(Maker& maker) {
  SetBiases(maker);
  maker.Copy("logit_scale", "logit_scale");
  maker.CopyInt("sliding_window", "attention.sliding_window");
}

void SetGptNeox(Maker& maker) {
  maker.SetRotaryPart();
  maker.config["attention_bias"] = maker.HasInLayer("attn_qkv.bias");
  if (const auto parallel = maker.Bool("use_parallel_residual")) {
    maker.config["use_parallel_residual"] = *parallel;
  }
}

void SetFalcon(Maker& maker) {
  const bool two_norms = maker.HasInLayer("attn_norm_2.weight");
  const int64_t kv = maker.config.value("num_key_value_heads", int64_t{1});
  const bool all = maker.config["num_attention_heads"] == kv;
  maker.config["new_decoder_architecture"] = two_norms || (kv > 1 && !all);
  maker.config["num_ln_in_parallel_attn"] = two_norms ? 2 : 1;
  maker.config["multi_query"] = kv == 1;
  maker.config["parallel_attn"] = !maker.HasInLayer("ffn_norm.weight");
  maker.config["bias"] = maker.HasInLayer("attn_qkv.bias");
}

void SetNothing(Maker& maker) { (void)maker; }

// The architectures that run: llama.cpp's name, config.json's model_type, and
// what is particular to each.
struct Architecture {
  absl::string_view name;
  const char* model_type;
  void (*set)(Maker& maker);
  bool experts = false;  // may have some
};
constexpr Architecture kArchitectures[] = {
    {"bloom", "bloom", &SetNothing},
    {"cohere2", "cohere2", &SetCohere2},
    {"command-r", "cohere", &SetCommandR},
    {"falcon", "falcon", &SetFalcon},
    {"gemma", "gemma", &SetNothing},
    {"gemma2", "gemma2", &SetGemma2},
    {"gemma3", "gemma3_text", &SetGemma3},
    {"glm4", "glm4", &SetGlm4},
    {"glm4moe", "glm4_moe", &SetGlm4Moe, true},
    {"gpt-oss", "gpt_oss", &SetGptOss, true},
    {"gpt2", "gpt2", &SetNothing},
    {"gptneox", "gpt_neox", &SetGptNeox},
    {"granite", "granite", &SetGranite},
    {"granitemoe", "granitemoe", &SetGraniteMoe, true},
    {"llama", "llama", &SetLlama, true},
    {"olmo2", "olmo2", &SetOlmo2},
    {"olmoe", "olmoe", &SetOlmoe, true},
    {"phi3", "phi3", &SetPhi3},
    {"qwen2", "qwen2", &SetNothing},
    {"qwen2moe", "qwen2_moe", &SetQwen2Moe, true},
    {"qwen3", "qwen3", &SetBiases},
    {"qwen3moe", "qwen3_moe", &SetQwen3Moe, true},
    {"smollm3", "smollm3", &SetBiases},
    {"stablelm", "stablelm", &SetStablelm},
    {"starcoder2", "starcoder2", &SetStarcoder2},
};

}  // namespace

absl::StatusOr<std::string> ConfigOfGguf(const SafetensorsSource& tensors) {
  SLUICE_ASSIGN_OR_RETURN(const auto name,
                          tensors.gguf()->String("general.architecture"));
  const auto* const found =
      std::find_if(std::begin(kArchitectures), std::end(kArchitectures),
                   [&](const Architecture& a) { return a.name == name; });
  if (found == std::end(kArchitectures)) {
    return Unimplemented(
        "architecture ", QuoteForMessage(name.value_or("")),
        " is not supported; of GGUF files, those of ",
        absl::StrJoin(kArchitectures, ", ",
                      [](std::string* out, const Architecture& a) {
                        out->append(a.name.data(), a.name.size());
                      }),
        " run");
  }
  Maker maker(tensors, *name);
  maker.config["model_type"] = found->model_type;
  maker.SetCommon();
  if (maker.status().ok()) maker.SetRotary();
  if (maker.status().ok() && HasExperts(maker) && !found->experts) {
    maker.Fail(Unimplemented("metadata \"", *name,
                             ".expert_count\": models of "
                             "this architecture with experts are not "
                             "supported"));
  }
  if (maker.status().ok()) found->set(maker);
  SLUICE_RETURN_IF_ERROR(maker.status());
  return maker.config.dump(-1, ' ', /*ensure_ascii=*/true,
                           json::error_handler_t::replace);
}

}  // namespace sluice
