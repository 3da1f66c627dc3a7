#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "runtime/model/families/config.h"

// Llama with layers that do not rotate positions.

namespace sluice {
namespace {

constexpr ConfigDefaults kSmollm3Defaults = {.vocab_size = 128256,
                                             .hidden_size = 2048,
                                             .intermediate_size = 11008,
                                             .num_layers = 36,
                                             .num_heads = 16,
                                             .num_kv_heads = 4,
                                             .max_positions = 32768,
                                             .bos = 128000,
                                             .eos = 128001,
                                             .tied_embeddings = true};

// Reads which layers rotate: no_rope_layers has 1 for those that do, else each
// no_rope_layer_interval-th does not.
void ReadRotated(ConfigReader& reader, DecoderSpec& spec) {
  constexpr char kKey[] = "no_rope_layers";
  const int32_t interval =
      reader.Int("no_rope_layer_interval", 4, 1, kMaxLayers);
  const nlohmann::json* const given = reader.OptionalArray(kKey);
  if (given != nullptr && given->size() < spec.layers.size()) {
    reader.Fail(kKey, absl::StrCat("must have ", spec.layers.size(),
                                   " entries, but has ", given->size()));
    return;
  }
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    bool rotated = (i + 1) % interval != 0;
    if (given != nullptr) {
      const nlohmann::json& entry = (*given)[i];
      if (!entry.is_boolean() && !entry.is_number_integer()) {
        reader.Fail(kKey, "must be a list of 1 and 0");
        return;
      }
      rotated = entry != 0 && entry != false;
    }
    if (!rotated) spec.layers[i].rotary = -1;
  }
}

absl::Status DescribeSmollm3(const nlohmann::json& config, DecoderSpec* spec) {
  ConfigReader reader(config);
  ReadCommon(reader, kSmollm3Defaults, *spec);
  ReadHeads(reader, kSmollm3Defaults, /*must_divide=*/false, *spec);
  ReadGatedMlp(reader, kSmollm3Defaults, *spec);
  spec->qkv_bias = spec->out_bias = reader.Bool("attention_bias", false);
  spec->mlp_bias = reader.Bool("mlp_bias", false);
  ReadRotated(reader, *spec);
  if (reader.Bool("use_sliding_window", false) &&
      reader.Has("sliding_window")) {
    std::vector<std::string> types(spec->num_layers, kFullAttention);
    for (int32_t i = 0; i < spec->num_layers; ++i) {
      if (spec->layer(i).rotary < 0) types[i] = kSlidingAttention;
    }
    types = ReadLayerTypes(reader, std::move(types));
    ReadSlidingWindow(reader, types, {}, *spec);
  }
  SLUICE_RETURN_IF_ERROR(reader.status());
  return SetRotary(config, {kFullAttention}, spec, {.theta = 2000000});
}

}  // namespace

const Family& Smollm3Family() {
  static const auto* const kFamily =
      new Family{{"smollm3"}, &DescribeSmollm3, &BindLlama};
  return *kFamily;
}

}  // namespace sluice
