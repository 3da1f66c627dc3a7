#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "runtime/model/families/config.h"

namespace sluice {
namespace {

constexpr ConfigDefaults kStablelmDefaults = {.vocab_size = 50304,
                                              .hidden_size = 2560,
                                              .intermediate_size = 6912,
                                              .num_layers = 32,
                                              .num_heads = 32,
                                              .num_kv_heads = 32,
                                              .max_positions = 4096,
                                              .bos = 0,
                                              .eos = 0};

absl::Status DescribeStablelm(const nlohmann::json& config, DecoderSpec* spec) {
  ConfigReader reader(config);
  ReadCommon(reader, kStablelmDefaults, *spec);
  ReadHeads(reader, kStablelmDefaults, /*must_divide=*/true, *spec);
  ReadGatedMlp(reader, kStablelmDefaults, *spec);
  spec->norm = NormKind::kLayerNorm;
  spec->norm_eps =
      static_cast<float>(reader.Number("layer_norm_eps", 1e-5, 0, 1));
  spec->qkv_bias = reader.Bool("use_qkv_bias", false);
  for (const char* key : {"qk_layernorm", "use_parallel_residual"}) {
    if (reader.Bool(key, false)) reader.Unsupported(key, "true");
  }
  const int32_t dim = ReadRotaryDim(reader, 0.25, *spec);
  SLUICE_RETURN_IF_ERROR(reader.status());
  return SetRotary(config, {kFullAttention}, spec, {.dim = dim});
}

}  // namespace

const Family& StablelmFamily() {
  static const auto* const kFamily =
      new Family{{"stablelm"}, &DescribeStablelm, &BindLlama};
  return *kFamily;
}

}  // namespace sluice
