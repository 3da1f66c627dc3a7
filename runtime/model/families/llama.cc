#include <cmath>
#include <optional>

#include "common/status_macros.h"
#include "runtime/model/families/config.h"

namespace sluice {
namespace {

constexpr ConfigDefaults kLlamaDefaults = {.vocab_size = 32000,
                                           .hidden_size = 4096,
                                           .intermediate_size = 11008,
                                           .num_layers = 32,
                                           .num_heads = 32,
                                           .max_positions = 2048,
                                           .bos = 1,
                                           .eos = 2};

absl::Status DescribeLlama(const nlohmann::json& config, DecoderSpec* spec) {
  ConfigReader reader(config);
  ReadCommon(reader, kLlamaDefaults, *spec);
  ReadHeads(reader, kLlamaDefaults, /*must_divide=*/true, *spec);
  ReadGatedMlp(reader, kLlamaDefaults, *spec);
  spec->qkv_bias = spec->out_bias = reader.Bool("attention_bias", false);
  spec->mlp_bias = reader.Bool("mlp_bias", false);
  SLUICE_RETURN_IF_ERROR(reader.status());
  return SetRotary(config, {kFullAttention}, spec);
}

}  // namespace

const Family& LlamaFamily() {
  static const auto* const kFamily =
      new Family{{"llama"}, &DescribeLlama, &BindLlama};
  return *kFamily;
}

}  // namespace sluice
