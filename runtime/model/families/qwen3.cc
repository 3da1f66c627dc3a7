#include <cmath>
#include <optional>

#include "common/status_macros.h"
#include "runtime/model/families/config.h"

namespace sluice {
namespace {

constexpr ConfigDefaults kQwen3Defaults = {.vocab_size = 151936,
                                           .hidden_size = 4096,
                                           .intermediate_size = 22016,
                                           .num_layers = 32,
                                           .num_heads = 32,
                                           .num_kv_heads = 32,
                                           .max_positions = 32768,
                                           .head_dim = 128};

absl::Status DescribeQwen3(const nlohmann::json& config, DecoderSpec* spec) {
  ConfigReader reader(config);
  ReadCommon(reader, kQwen3Defaults, *spec);
  ReadHeads(reader, kQwen3Defaults, /*must_divide=*/false, *spec);
  ReadGatedMlp(reader, kQwen3Defaults, *spec);
  spec->qkv_bias = spec->out_bias = reader.Bool("attention_bias", false);
  spec->qk_norm = QkNorm::kEachHead;
  const std::vector<std::string> types = ReadQwenWindows(reader, *spec);
  SLUICE_RETURN_IF_ERROR(reader.status());
  return SetRotary(config, types, spec);
}

}  // namespace

const Family& Qwen3Family() {
  static const auto* const kFamily =
      new Family{{"qwen3"}, &DescribeQwen3, &BindLlama};
  return *kFamily;
}

}  // namespace sluice
