#include <optional>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "runtime/model/families/config.h"

namespace sluice {
namespace {

constexpr ConfigDefaults kMixtralDefaults = {.vocab_size = 32000,
                                             .hidden_size = 4096,
                                             .intermediate_size = 14336,
                                             .num_layers = 32,
                                             .num_heads = 32,
                                             .num_kv_heads = 8,
                                             .max_positions = 4096 * 32,
                                             .bos = 1,
                                             .eos = 2};
constexpr MixtureSpec kMixtralMixture = {.experts = 8,
                                         .experts_per_token = 2,
                                         .expert_size = 14336,
                                         .normalize = true};

absl::Status DescribeMixtral(const nlohmann::json& config, DecoderSpec* spec) {
  ConfigReader reader(config);
  ReadCommon(reader, kMixtralDefaults, *spec);
  ReadHeads(reader, kMixtralDefaults, /*must_divide=*/false, *spec);
  ReadGatedMlp(reader, kMixtralDefaults, *spec);
  ReadMixture(reader,
              {"num_local_experts", "num_experts_per_tok", "intermediate_size"},
              kMixtralMixture, *spec);
  for (LayerSpec& layer : spec->layers) layer.mixture = true;
  const std::string type = ReadWindow(reader, std::nullopt, *spec);
  SLUICE_RETURN_IF_ERROR(reader.status());
  return SetRotary(config, {type}, spec);
}

TensorSlice Bind(const DecoderSpec& spec, TensorRole role, int layer) {
  if (role != TensorRole::kRouterWeight) return BindLlama(spec, role, layer);
  return {
      absl::StrCat("model.layers.", layer, ".block_sparse_moe.gate.weight")};
}

TensorSlice BindExpert(const DecoderSpec& spec, TensorRole role, int layer,
                       int expert) {
  const char* const name = role == TensorRole::kExpertGateWeight ? "w1"
                           : role == TensorRole::kExpertUpWeight ? "w3"
                                                                 : "w2";
  return {absl::StrCat("model.layers.", layer, ".block_sparse_moe.experts.",
                       expert, ".", name, ".weight")};
}

}  // namespace

const Family& MixtralFamily() {
  static const auto* const kFamily =
      new Family{{"mixtral"}, &DescribeMixtral, &Bind, &BindExpert};
  return *kFamily;
}

}  // namespace sluice
