#include "runtime/model/checkpoint/quantization/float8_weight.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "common/status_macros.h"

namespace sluice {
namespace {

// Returns the 256 numbers of float8 e4m3fn ("FP8 Formats for Deep Learning",
// Micikevicius et al. 2022, table 1): a sign, 4 bits of exponent with bias 7, 3
// of mantissa; no infinities, and 0x7f and 0xff are NaN.
std::array<float, 256> MakeFloat8E4M3() {
  std::array<float, 256> numbers{};
  for (int code = 0; code < 256; ++code) {
    const int exponent = code >> 3 & 15;
    const int mantissa = code & 7;
    float number = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                                 : std::ldexp(static_cast<float>(8 + mantissa),
                                              exponent - 10);
    if (exponent == 15 && mantissa == 7) {
      number = std::numeric_limits<float>::quiet_NaN();
    }
    numbers[code] = code < 128 ? number : -number;
  }
  return numbers;
}

int64_t Blocks(int64_t size, int64_t block) {
  return (size + block - 1) / block;
}

}  // namespace

std::vector<std::vector<int64_t>> ScaleShapes(const QuantizedFormat& format,
                                              const WeightPlace& place) {
  switch (format.strategy) {
    case ScaleStrategy::kTensor:
      return {{}, {1}, {1, 1}};
    case ScaleStrategy::kChannel:
      return {{place.rows, 1}, {place.rows}};
    case ScaleStrategy::kGroup:
      return {{place.rows, place.columns / format.group_size}};
    case ScaleStrategy::kBlock:
      return {{Blocks(place.rows, format.block_rows),
               Blocks(place.columns, format.block_columns)}};
  }
  return {};
}

Float8Weight::Float8Weight(const WeightPlace& place,
                           const std::string& scale_name,
                           const SafetensorsEntry& scale, Block block,
                           DType rounding)
    : name_(place.module + ".weight"),
      scale_name_(scale_name),
      columns_(place.columns),
      // A single scale may have any shape.
      block_(scale.end - scale.begin ==
                     static_cast<uint64_t>(SafetensorsElementBytes(scale.dtype))
                 ? Block{place.rows, place.columns}
                 : block),
      rounding_(rounding) {
  parts_ = {name_, scale_name_};
}

absl::StatusOr<const CodeFormat*> Float8Weight::FindFormat(
    const StoredTensors&) const {
  ScaledCodes scaled = {.code = ScaledCodes::Code::kE4M3,
                        .group = 0,
                        .scale = rounding_,
                        .zero_bits = 0,
                        .shared = false,
                        .any_order = false};
  if (block_.columns < columns_) {
    scaled.group = static_cast<int32_t>(block_.columns);
    scaled.shared = block_.rows > 1;
    if (scaled.shared && block_.rows % kStripColumns != 0) return nullptr;
  }
  const CodeFormat* const format = FindScaledFormat(scaled);
  return format != nullptr && format->Fits(columns_) ? format : nullptr;
}

absl::Status Float8Weight::Load(const StoredTensors& tensors) {
  SLUICE_ASSIGN_OR_RETURN(scales_, ReadNumbers(tensors, scale_name_));
  SLUICE_ASSIGN_OR_RETURN(format_, FindFormat(tensors));
  return absl::OkStatus();
}

const float* Float8Weight::ScalesOf(int64_t row) const {
  return scales_.data() + row / block_.rows * Blocks(columns_, block_.columns);
}

absl::Status Float8Weight::ReadCodes(const StoredTensors& tensors,
                                     int64_t begin, int64_t end,
                                     std::byte* out) const {
  const ScaledCodes& scaled = *format_->scaled;
  const int32_t groups = scaled.groups(columns_);
  for (int64_t row = begin; row < end; ++row) {
    SLUICE_RETURN_IF_ERROR(tensors.Read(name_, row * columns_,
                                        (row + 1) * columns_,
                                        reinterpret_cast<char*>(out)));
    out = WriteScales({ScalesOf(row), static_cast<size_t>(groups)},
                      scaled.stored(), out + columns_);
  }
  return absl::OkStatus();
}

absl::Status Float8Weight::ReadRows(const StoredTensors& tensors, int64_t begin,
                                    int64_t end, float* out) const {
  std::vector<uint8_t> codes((end - begin) * columns_);
  SLUICE_RETURN_IF_ERROR(tensors.Read(name_, begin * columns_, end * columns_,
                                      reinterpret_cast<char*>(codes.data())));
  static const std::array<float, 256> kFloats = MakeFloat8E4M3();
  const std::array<float, 256>& numbers = kFloats;
  const uint8_t* code = codes.data();
  for (int64_t row = begin; row < end; ++row) {
    const float* scale = ScalesOf(row);
    for (int64_t column = 0; column < columns_; column += block_.columns) {
      const int64_t n = std::min(block_.columns, columns_ - column);
      for (int64_t i = 0; i < n; ++i) out[i] = numbers[code[i]] * *scale;
      if (rounding_ != DType::kFloat32) {
        for (int64_t i = 0; i < n; ++i) out[i] = RoundTo(rounding_, out[i]);
      }
      ++scale;
      code += n;
      out += n;
    }
  }
  return absl::OkStatus();
}

}  // namespace sluice
