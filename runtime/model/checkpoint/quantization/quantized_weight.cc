#include "runtime/model/checkpoint/quantization/quantized_weight.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/float16.h"
#include "common/status_macros.h"

namespace sluice {

absl::StatusOr<std::unique_ptr<QuantizedWeight>> OpenQuantizedWeight(
    const QuantizationConfig& config, const StoredTensors& tensors,
    const WeightPlace& place) {
  switch (config.method) {
    case QuantizationConfig::Method::kNone:
      return nullptr;
    case QuantizationConfig::Method::kFp8:
      return OpenFp8Weight(config, tensors, place);
    case QuantizationConfig::Method::kGptq:
      return OpenGptqWeight(config, tensors, place);
    case QuantizationConfig::Method::kAwq:
      return OpenAwqWeight(config, tensors, place);
    case QuantizationConfig::Method::kMxFp4:
      return OpenMxFp4Weight(tensors, place);
    case QuantizationConfig::Method::kCompressedTensors:
      return OpenCompressedWeight(config, tensors, place);
  }
  return nullptr;
}

bool FindsTransposed(QuantizationConfig::Method method) {
  return StoredByInputs(method) || method == QuantizationConfig::Method::kMxFp4;
}

bool StoredByInputs(QuantizationConfig::Method method) {
  return method == QuantizationConfig::Method::kGptq ||
         method == QuantizationConfig::Method::kAwq;
}

absl::StatusOr<const SafetensorsEntry*> CheckPart(
    const StoredTensors& tensors, const WeightPlace& place,
    const std::string& name, const std::vector<absl::string_view>& dtypes,
    const std::vector<std::vector<int64_t>>& shapes) {
  const std::optional<StoredTensors::Place> found = tensors.Find(name);
  if (!found) {
    return InvalidArgument("no tensor ", name, ", which the quantized weight ",
                           place.module, " of shape ",
                           ShapeText({place.rows, place.columns}), " needs");
  }
  const SafetensorsEntry& entry = *found->entry;
  if (std::find(dtypes.begin(), dtypes.end(), entry.dtype) == dtypes.end()) {
    return InvalidArgument(found->path, ": ", name, " has dtype ", entry.dtype,
                           ", but must have ", absl::StrJoin(dtypes, " or "));
  }
  if (std::find(shapes.begin(), shapes.end(), entry.shape) == shapes.end()) {
    return InvalidArgument(
        found->path, ": ", name, " has shape ", ShapeText(entry.shape),
        ", but config.json asks for ",
        absl::StrJoin(shapes, " or ",
                      [](std::string* out, const auto& shape) {
                        out->append(ShapeText(shape));
                      }),
        ", as the weight is ", ShapeText({place.rows, place.columns}));
  }
  return &entry;
}

absl::StatusOr<std::vector<float>> ReadNumbers(const StoredTensors& tensors,
                                               const std::string& name) {
  const std::string& dtype = tensors.Find(name)->entry->dtype;
  if (dtype == "F32") return ReadIntegers<float>(tensors, name);
  std::vector<float> numbers;
  if (dtype == "F8_E8M0") {
    SLUICE_ASSIGN_OR_RETURN(const std::vector<uint8_t> bytes,
                            ReadIntegers<uint8_t>(tensors, name));
    for (const uint8_t byte : bytes) {
      numbers.push_back(byte == 255 ? std::nanf("")
                                    : std::ldexp(1.0F, int{byte} - 127));
    }
    return numbers;
  }
  SLUICE_ASSIGN_OR_RETURN(const std::vector<uint16_t> words,
                          ReadIntegers<uint16_t>(tensors, name));
  for (const uint16_t word : words) {
    numbers.push_back(dtype == "BF16" ? BFloat16ToFloat(word)
                                      : Float16ToFloat(word));
  }
  return numbers;
}

std::byte* WriteScales(std::span<const float> scales, DType dtype,
                       std::byte* out) {
  if (dtype == DType::kFloat32) {
    std::memcpy(out, scales.data(), scales.size_bytes());
    return out + scales.size_bytes();
  }
  for (const float scale : scales) {
    const uint16_t half =
        dtype == DType::kFloat16
            ? FloatToFloat16(scale)
            : static_cast<uint16_t>(std::bit_cast<uint32_t>(scale) >> 16);
    std::memcpy(out, &half, sizeof half);
    out += sizeof half;
  }
  return out;
}

DType RoundingOf(absl::string_view scale_dtype) {
  if (scale_dtype == "F16") return DType::kFloat16;
  if (scale_dtype == "BF16") return DType::kBFloat16;
  return DType::kFloat32;
}

float RoundTo(DType dtype, float x) {
  if (dtype == DType::kFloat16) return Float16ToFloat(FloatToFloat16(x));
  if (dtype != DType::kBFloat16 || std::isnan(x)) return x;
  uint32_t bits = std::bit_cast<uint32_t>(x);
  bits += 0x7fffU + (bits >> 16 & 1U);
  return std::bit_cast<float>(bits & 0xffff0000U);
}

}  // namespace sluice
