#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "runtime/model/families/config.h"

namespace sluice {
namespace {

constexpr ConfigDefaults kStarcoder2Defaults = {.vocab_size = 49152,
                                                .hidden_size = 3072,
                                                .intermediate_size = 12288,
                                                .num_layers = 30,
                                                .num_heads = 24,
                                                .num_kv_heads = 2,
                                                .max_positions = 4096,
                                                .bos = 50256,
                                                .eos = 50256,
                                                .tied_embeddings = true};

absl::Status DescribeStarcoder2(const nlohmann::json& config,
                                DecoderSpec* spec) {
  ConfigReader reader(config);
  ReadCommon(reader, kStarcoder2Defaults, *spec);
  ReadHeads(reader, kStarcoder2Defaults, /*must_divide=*/false, *spec);
  ReadPlainMlp(reader, kStarcoder2Defaults, "hidden_act", "gelu_pytorch_tanh",
               *spec);
  spec->norm_eps =
      static_cast<float>(reader.Number("norm_epsilon", 1e-5, 0, 1));
  spec->qkv_bias = spec->out_bias = spec->mlp_bias =
      reader.Bool("use_bias", true);
  const std::string type = ReadWindow(reader, std::nullopt, *spec);
  SLUICE_RETURN_IF_ERROR(reader.status());
  return SetRotary(config, {type}, spec);
}

TensorSlice BindStarcoder2(const DecoderSpec& spec, TensorRole role,
                           int layer) {
  const auto of_mlp = [&](const char* name) -> TensorSlice {
    return {absl::StrCat("model.layers.", layer, ".mlp.", name)};
  };
  switch (role) {
    case TensorRole::kUpWeight:
      return of_mlp("c_fc.weight");
    case TensorRole::kUpBias:
      return of_mlp("c_fc.bias");
    case TensorRole::kDownWeight:
      return of_mlp("c_proj.weight");
    case TensorRole::kDownBias:
      return of_mlp("c_proj.bias");
    default:
      return BindLlama(spec, role, layer);
  }
}

}  // namespace

const Family& Starcoder2Family() {
  static const auto* const kFamily =
      new Family{{"starcoder2"}, &DescribeStarcoder2, &BindStarcoder2};
  return *kFamily;
}

}  // namespace sluice
