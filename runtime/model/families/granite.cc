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

// Llama with factors: of the embedding, of what is added to the residual
// stream, of q k, and of the logits. All but that of q k are those of weights.
absl::Status DescribeGranite(const nlohmann::json& config, DecoderSpec* spec) {
  constexpr double kMaxFactor = 1e9;
  ConfigReader reader(config);
  ReadCommon(reader, kGraniteDefaults, *spec);
  ReadHeads(reader, kGraniteDefaults, /*must_divide=*/true, *spec);
  ReadGatedMlp(reader, kGraniteDefaults, *spec);
  spec->qkv_bias = spec->out_bias = reader.Bool("attention_bias", false);
  spec->mlp_bias = reader.Bool("mlp_bias", false);
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

}  // namespace

const Family& GraniteFamily() {
  static const auto* const kFamily =
      new Family{{"granite"}, &DescribeGranite, &BindLlama};
  return *kFamily;
}

}  // namespace sluice
