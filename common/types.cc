#include "common/types.h"

#include "absl/status/status.h"
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
  switch (dtype) {
    case DType::kFloat32:
      return "float32";
    case DType::kBFloat16:
      return "bfloat16";
    case DType::kFloat16:
      return "float16";
  }
  return "unknown";
}

absl::string_view WeightFormatName(WeightFormat format) {
  switch (format) {
    case WeightFormat::kInt8:
      return "int8";
    case WeightFormat::kInt4:
      return "int4";
    case WeightFormat::kFull:
      break;
  }
  return "none";
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
  switch (format) {
    case KvFormat::kFloat32:
      return "float32";
    case KvFormat::kBFloat16:
      return "bfloat16";
    case KvFormat::kFloat16:
      return "float16";
    case KvFormat::kInt8:
      return "int8";
    case KvFormat::kInt4:
      return "int4";
  }
  return "unknown";
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
