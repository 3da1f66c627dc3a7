#include "common/types.h"

#include "common/status_macros.h"

namespace sluice {

absl::StatusOr<DTypeChoice> ParseDTypeChoice(absl::string_view text) {
  if (text == "auto") return DTypeChoice::kAuto;
  if (text == "float32" || text == "fp32" || text == "float")
    return DTypeChoice::kFloat32;
  if (text == "bfloat16" || text == "bf16") return DTypeChoice::kBFloat16;
  if (text == "float16" || text == "fp16" || text == "half")
    return DTypeChoice::kFloat16;
  return InvalidArgument("dtype \"", text,
                         "\" is none of auto, float32, bfloat16, float16");
}

absl::string_view DTypeName(DType dtype) {
  if (dtype == DType::kFloat32) return "float32";
  return dtype == DType::kBFloat16 ? "bfloat16" : "float16";
}

absl::string_view WeightFormatName(WeightFormat format) {
  if (format == WeightFormat::kFull) return "none";
  return format == WeightFormat::kInt8 ? "int8" : "int4";
}

absl::StatusOr<WeightFormat> ParseWeightFormat(absl::string_view text) {
  for (WeightFormat format :
       {WeightFormat::kFull, WeightFormat::kInt8, WeightFormat::kInt4}) {
    if (text == WeightFormatName(format)) return format;
  }
  return InvalidArgument("weight format \"", text,
                         "\" is none of none, int8, int4");
}

absl::string_view KvFormatName(KvFormat format) {
  constexpr absl::string_view kNames[] = {"float32", "bfloat16", "float16",
                                          "int8", "int4"};
  return kNames[static_cast<size_t>(format)];
}

absl::StatusOr<KvFormat> ParseKvFormat(absl::string_view text) {
  if (text == "float32" || text == "fp32" || text == "float")
    return KvFormat::kFloat32;
  if (text == "bfloat16" || text == "bf16") return KvFormat::kBFloat16;
  if (text == "float16" || text == "fp16" || text == "half")
    return KvFormat::kFloat16;
  if (text == "int8") return KvFormat::kInt8;
  if (text == "int4") return KvFormat::kInt4;
  return InvalidArgument(
      "KV cache format \"", text,
      "\" is none of float32, bfloat16, float16, int8, int4");
}

}  // namespace sluice
