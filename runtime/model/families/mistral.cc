#include <cmath>
#include <optional>

#include "common/status_macros.h"
#include "runtime/model/families/config.h"

namespace sluice {
namespace {

constexpr ConfigDefaults kMistralDefaults = {.vocab_size = 32000,
                                             .hidden_size = 4096,
                                             .intermediate_size = 14336,
                                             .num_layers = 32,
                                             .num_heads = 32,
                                             .num_kv_heads = 8,
                                             .max_positions = 4096 * 32,
                                             .bos = 1,
                                             .eos = 2};

absl::Status DescribeMistral(const nlohmann::json& config, DecoderSpec* spec) {
  ConfigReader reader(config);
  ReadCommon(reader, kMistralDefaults, *spec);
  ReadHeads(reader, kMistralDefaults, /*must_divide=*/false, *spec);
  ReadGatedMlp(reader, kMistralDefaults, *spec);
  const std::string type = ReadWindow(reader, 4096, *spec);
  SLUICE_RETURN_IF_ERROR(reader.status());
  return SetRotary(config, {type}, spec);
}

}  // namespace

const Family& MistralFamily() {
  static const auto* const kFamily =
      new Family{{"mistral"}, &DescribeMistral, &BindLlama};
  return *kFamily;
}

}  // namespace sluice
