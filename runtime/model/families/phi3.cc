#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "runtime/model/families/config.h"

namespace sluice {
namespace {

constexpr ConfigDefaults kPhi3Defaults = {.vocab_size = 32064,
                                          .hidden_size = 3072,
                                          .intermediate_size = 8192,
                                          .num_layers = 32,
                                          .num_heads = 32,
                                          .max_positions = 4096,
                                          .bos = 1,
                                          .eos = 32000};

absl::Status DescribePhi3(const nlohmann::json& config, DecoderSpec* spec) {
  ConfigReader reader(config);
  ReadCommon(reader, kPhi3Defaults, *spec);
  ReadHeads(reader, kPhi3Defaults, /*must_divide=*/false, *spec);
  ReadGatedMlp(reader, kPhi3Defaults, *spec);
  spec->norm_eps =
      static_cast<float>(reader.Number("rms_norm_eps", 1e-5, 0, 1));
  const std::string type = ReadWindow(reader, std::nullopt, *spec);
  const int32_t dim = ReadRotaryDim(reader, 1, *spec);
  SLUICE_RETURN_IF_ERROR(reader.status());
  // Older files have other names for LongRoPE.
  nlohmann::json renamed = config;
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (!renamed.contains(key) || !renamed[key].is_object()) continue;
    for (const char* type_key : {"type", "rope_type"}) {
      const auto it = renamed[key].find(type_key);
      if (it == renamed[key].end()) continue;
      if (*it == "su" || *it == "yarn") *it = "longrope";
    }
  }
  return SetRotary(renamed, {type}, spec, {.dim = dim});
}

// Q, K and V are rows of one tensor, gate and up of another.
TensorSlice BindPhi3(const DecoderSpec& spec, TensorRole role, int layer) {
  const int64_t q = int64_t{spec.num_heads} * spec.head_dim;
  const int64_t kv = int64_t{spec.num_kv_heads} * spec.head_dim;
  const int64_t inner = spec.intermediate_size;
  const auto rows = [&](const char* name, int64_t first, int64_t all) {
    return TensorSlice{.name = absl::StrCat("model.layers.", layer, ".", name),
                       .first_row = first,
                       .tensor_rows = all};
  };
  switch (role) {
    case TensorRole::kQWeight:
      return rows("self_attn.qkv_proj.weight", 0, q + 2 * kv);
    case TensorRole::kKWeight:
      return rows("self_attn.qkv_proj.weight", q, q + 2 * kv);
    case TensorRole::kVWeight:
      return rows("self_attn.qkv_proj.weight", q + kv, q + 2 * kv);
    case TensorRole::kGateWeight:
      return rows("mlp.gate_up_proj.weight", 0, 2 * inner);
    case TensorRole::kUpWeight:
      return rows("mlp.gate_up_proj.weight", inner, 2 * inner);
    default:
      return BindLlama(spec, role, layer);
  }
}

}  // namespace

const Family& Phi3Family() {
  static const auto* const kFamily =
      new Family{{"phi3"}, &DescribePhi3, &BindPhi3};
  return *kFamily;
}

}  // namespace sluice
