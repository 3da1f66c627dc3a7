#include "runtime/model/decoder_spec.h"

#include <bit>
#include <cmath>
#include <nlohmann/json.hpp>

#include "absl/strings/str_join.h"
#include "common/status_macros.h"
#include "runtime/model/checkpoint/quantization/quantization_config.h"
#include "runtime/model/codes_json.h"
#include "runtime/model/config_reader.h"
#include "runtime/model/families/family.h"
#include "runtime/model/json_file.h"

namespace sluice {

absl::StatusOr<DecoderSpec> ParseDecoderSpec(absl::string_view config_json) {
  SLUICE_ASSIGN_OR_RETURN(const nlohmann::json config,
                          ParseJsonObject(config_json));
  ConfigReader reader(config);
  if (!reader.Has("model_type")) reader.Fail("model_type", "is missing");
  DecoderSpec spec;
  spec.model_type = reader.String("model_type", "");
  SLUICE_RETURN_IF_ERROR(reader.status());
  const Family* const family = FindFamily(spec.model_type);
  if (family == nullptr) {
    return Unimplemented("model_type \"", spec.model_type.substr(0, 60),
                         "\" is not supported (",
                         absl::StrJoin(KnownModelTypes(), ", "), " are)");
  }
  SLUICE_RETURN_IF_ERROR(ParseQuantizationConfig(config).status());
  SLUICE_RETURN_IF_ERROR(family->describe(config, &spec));
  SLUICE_RETURN_IF_ERROR(SetCodes(config, &spec));
  return spec;
}

int32_t DecoderSpec::alibi_heads() const {
  if (!alibi()) return 0;
  return static_cast<int32_t>(std::bit_floor(static_cast<uint32_t>(num_heads)));
}

float DecoderSpec::alibi_slope(int head) const {
  const int32_t heads = alibi_heads();
  if (heads == 0) return 0;
  const float exponent =
      head < heads ? -8.0F * static_cast<float>(head + 1)
                   : -4.0F * static_cast<float>(2 * (head - heads) + 1);
  return std::exp2(exponent / static_cast<float>(heads));
}

DType ResolveDType(DTypeChoice choice, const DecoderSpec& spec,
                   bool has_float16) {
  if (choice == DTypeChoice::kFloat32) return DType::kFloat32;
  if (choice == DTypeChoice::kBFloat16) return DType::kBFloat16;
  if (choice == DTypeChoice::kFloat16) return DType::kFloat16;
  return spec.native_dtype == DType::kFloat16 && !has_float16
             ? DType::kBFloat16
             : spec.native_dtype;
}

}  // namespace sluice
