#pragma once

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "runtime/model/config_reader.h"
#include "runtime/model/families/family.h"

// What the config.json files of several families share. Keys, defaults for
// absent keys and their meaning follow Hugging Face transformers'
// configuration_*.py.

namespace sluice {

// Upper bounds far beyond any real model; they keep every product of sizes
// within 63 bits.
inline constexpr int32_t kMaxVocab = 1 << 24;
inline constexpr int32_t kMaxWidth = 1 << 20;
inline constexpr int32_t kMaxLayers = 1 << 12;
inline constexpr int32_t kMaxHeads = 1 << 16;
inline constexpr int32_t kMaxPositions = 1 << 30;
inline constexpr int32_t kMaxExperts = 1 << 12;
inline constexpr int32_t kMaxExpertWidths = 1 << 24;  // of a layer together
inline constexpr int32_t kMaxToken = std::numeric_limits<int32_t>::max();

// Entries of layer_types.
inline constexpr char kFullAttention[] = "full_attention";
inline constexpr char kSlidingAttention[] = "sliding_attention";

// The defaults of a family's configuration class.
struct ConfigDefaults {
  int32_t vocab_size, hidden_size, intermediate_size, num_layers, num_heads;
  std::optional<int32_t> num_kv_heads = std::nullopt;  // empty: num_heads
  int32_t max_positions;
  std::optional<int32_t> bos = std::nullopt, eos = std::nullopt;
  bool tied_embeddings = false;
  std::optional<int32_t> head_dim = std::nullopt;  // empty: hidden / heads
};

// Reads the keys that all families have.
void ReadCommon(ConfigReader& reader, const ConfigDefaults& defaults,
                DecoderSpec& spec);
// Reads head width and KV heads of the rotary families.
void ReadHeads(ConfigReader& reader, const ConfigDefaults& defaults,
               bool must_divide, DecoderSpec& spec);
// Sets as many KV heads as heads, which divide hidden_size.
void ReadEqualHeads(ConfigReader& reader, DecoderSpec& spec);
// Reads the width and the activation of an MLP that is not gated, in a family
// with LayerNorm; a default of 0 means 4 hidden_size.
void ReadPlainMlp(ConfigReader& reader, const ConfigDefaults& defaults,
                  const char* activation_key, const char* activation,
                  DecoderSpec& spec);
// The names that GPT-2 and GPT-J have for the sizes.
std::vector<ConfigReader::Alias> GptAliases();
// Reads the widths and the activation of a gated MLP, and the eps of RMSNorm.
void ReadGatedMlp(ConfigReader& reader, const ConfigDefaults& defaults,
                  DecoderSpec& spec);
Activation ReadActivation(ConfigReader& reader, const char* key,
                          const char* fallback);
// Reads layer_types, a type for each layer: kFullAttention or
// kSlidingAttention; `fallback` if there are none.
std::vector<std::string> ReadLayerTypes(ConfigReader& reader,
                                        std::vector<std::string> fallback);
// Returns types of which each `period`th is kFullAttention.
std::vector<std::string> EveryNthFull(int32_t layers, int32_t period);
// Reads sliding_window, `fallback` if absent, which the sliding ones have.
void ReadSlidingWindow(ConfigReader& reader,
                       const std::vector<std::string>& types,
                       std::optional<int32_t> fallback, DecoderSpec& spec);
// Reads layer_types, or else max_window_layers, of families in which only
// layers of type "sliding_attention" have a window: that of sliding_window, if
// use_sliding_window is true.
// Returns the distinct types.
std::vector<std::string> ReadQwenWindows(ConfigReader& reader,
                                         DecoderSpec& spec);
// Reads sliding_window, of all layers; `fallback` if the key is absent. Returns
// the layers' type.
std::string ReadWindow(ConfigReader& reader, std::optional<int32_t> fallback,
                       DecoderSpec& spec);
// Reads partial_rotary_factor, which may stand among the rotary settings.
// Returns the dimensions of a head that are rotated. REQUIRES: head_dim is set.
int32_t ReadRotaryDim(ConfigReader& reader, double fallback,
                      const DecoderSpec& spec);
// Of a head, `dim` dimensions are rotated (ReadRotaryDim), or all, if 0; theta
// is the base where the file has none.
struct RotaryDefaults {
  int32_t dim = 0;
  double theta = 10000;
};
// Sets the rotary embedding, the same of all layers, the positions that it
// reaches, and the scale of attention. `layer_types` are those in use.
absl::Status SetRotary(const nlohmann::json& config,
                       const std::vector<std::string>& layer_types,
                       DecoderSpec* spec, const RotaryDefaults& defaults = {});
// Does so where the layers' types, one for each, have rotary embeddings of
// their own: rope_parameters by type, or rope_theta and rope_scaling of the
// layers without a window, and `sliding_theta_key` of those with one.
absl::Status SetRotaryByType(const nlohmann::json& config,
                             const std::vector<std::string>& types,
                             const char* sliding_theta_key, double full_theta,
                             double sliding_theta, DecoderSpec* spec);

// What checkpoints of GPT-NeoX's layout call differently: one tensor has for
// each group of KV heads its query heads, then K, then V; an MLP's matrices are
// dense_h_to_4h and dense_4h_to_h.
struct NeoxNames {
  absl::string_view layers;      // "gpt_neox.layers"
  absl::string_view attention;   // of a layer: "attention"
  absl::string_view embedding;   // "gpt_neox.embed_in"
  absl::string_view final_norm;  // "gpt_neox.final_layer_norm"
  absl::string_view head;        // where it is not the embedding
};
TensorSlice BindNeox(const NeoxNames& names, const DecoderSpec& spec,
                     TensorRole role, int layer);

// The names that GPT-2's and GPT-J's checkpoints share, and else llama's.
TensorSlice BindGpt(const DecoderSpec& spec, TensorRole role, int layer);

// The names that llama's checkpoints have, and those of most families.
TensorSlice BindLlama(const DecoderSpec& spec, TensorRole role, int layer);
// The same of a mixture's experts: "mlp.experts.7.gate_proj.weight".
TensorSlice BindLlamaExpert(const DecoderSpec& spec, TensorRole role, int layer,
                            int expert);
// Reads a mixture's sizes and how many experts a row takes, which is at most
// all: the keys that say so, and the defaults where the file has them not.
struct MixtureKeys {
  const char* experts;
  const char* per_token;
  const char* expert_size;
};
void ReadMixture(ConfigReader& reader, const MixtureKeys& keys,
                 const MixtureSpec& defaults, DecoderSpec& spec);
// Reads how many experts all rows take, which are one of as many times an
// expert's size.
void ReadSharedExperts(ConfigReader& reader, const char* key, int32_t fallback,
                       DecoderSpec& spec);
// Reads n_group and topk_group.
void ReadExpertGroups(ConfigReader& reader, DecoderSpec& spec);

}  // namespace sluice
