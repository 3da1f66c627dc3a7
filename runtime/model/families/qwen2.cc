#include <cmath>
#include <optional>

#include "common/status_macros.h"
#include "runtime/model/families/config.h"

namespace sluice {
namespace {

constexpr ConfigDefaults kQwen2Defaults = {.vocab_size = 151936,
                                           .hidden_size = 4096,
                                           .intermediate_size = 22016,
                                           .num_layers = 32,
                                           .num_heads = 32,
                                           .num_kv_heads = 32,
                                           .max_positions = 32768};

absl::Status DescribeQwen2(const nlohmann::json& config, DecoderSpec* spec) {
  ConfigReader reader(config);
  ReadCommon(reader, kQwen2Defaults, *spec);
  ReadHeads(reader, kQwen2Defaults, /*must_divide=*/false, *spec);
  ReadGatedMlp(reader, kQwen2Defaults, *spec);
  spec->qkv_bias = true;
  const std::vector<std::string> types = ReadQwenWindows(reader, *spec);
  SLUICE_RETURN_IF_ERROR(reader.status());
  return SetRotary(config, types, spec);
}

}  // namespace

const Family& Qwen2Family() {
  static const auto* const kFamily =
      new Family{{"qwen2"}, &DescribeQwen2, &BindLlama};
  return *kFamily;
}

}  // namespace sluice
