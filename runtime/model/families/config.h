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
// Reads the widths and the activation of a gated MLP, and the eps of RMSNorm.
void ReadGatedMlp(ConfigReader& reader, const ConfigDefaults& defaults,
                  DecoderSpec& spec);
Activation ReadActivation(ConfigReader& reader, const char* key,
                          const char* fallback);
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
// Sets the rotary embedding, the positions that it reaches, and the scale of
// attention. `layer_types` are those in use; of a head, `rotary_dim` dimensions
// are rotated (ReadRotaryDim), or all.
absl::Status SetRotary(const nlohmann::json& config,
                       const std::vector<std::string>& layer_types,
                       DecoderSpec* spec, int32_t rotary_dim = 0);

// The names that llama's checkpoints have, and those of most families.
TensorSlice BindLlama(const DecoderSpec& spec, TensorRole role, int layer);

}  // namespace sluice
