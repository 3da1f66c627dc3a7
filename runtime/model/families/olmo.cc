#include <string>
#include <vector>

#include "common/status_macros.h"
#include "runtime/model/families/config.h"

// OLMo 2 and 3: norms of what attention and MLP give, and of all heads' q and k
// together.

namespace sluice {
namespace {

constexpr ConfigDefaults kOlmoDefaults = {.vocab_size = 50304,
                                          .hidden_size = 4096,
                                          .intermediate_size = 11008,
                                          .num_layers = 32,
                                          .num_heads = 32,
                                          .max_positions = 2048,
                                          .eos = 50279};

absl::Status DescribeOlmo(const nlohmann::json& config, DecoderSpec* spec) {
  ConfigReader reader(config);
  ReadCommon(reader, kOlmoDefaults, *spec);
  ReadHeads(reader, kOlmoDefaults, /*must_divide=*/false, *spec);
  ReadGatedMlp(reader, kOlmoDefaults, *spec);
  spec->norm_eps =
      static_cast<float>(reader.Number("rms_norm_eps", 1e-5, 0, 1));
  spec->norm_place = NormPlace::kOutput;
  spec->qk_norm = QkNorm::kAllHeads;
  spec->qkv_bias = spec->out_bias = reader.Bool("attention_bias", false);
  if (spec->model_type == "olmo2") {
    SLUICE_RETURN_IF_ERROR(reader.status());
    return SetRotary(config, {kFullAttention}, spec);
  }
  const std::vector<std::string> types =
      ReadLayerTypes(reader, EveryNthFull(spec->num_layers, 4));
  ReadSlidingWindow(reader, types, 4096, *spec);
  SLUICE_RETURN_IF_ERROR(reader.status());
  return SetRotaryByType(config, types, "rope_theta", 500000, 500000, spec);
}

}  // namespace

const Family& OlmoFamily() {
  static const auto* const kFamily =
      new Family{{"olmo2", "olmo3"}, &DescribeOlmo, &BindLlama};
  return *kFamily;
}

}  // namespace sluice
