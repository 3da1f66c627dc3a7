#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "runtime/model/checkpoint/quantization/float8_weight.h"
#include "runtime/model/checkpoint/quantization/integer_weight.h"
#include "runtime/model/checkpoint/quantization/mxfp4_weight.h"
#include "runtime/model/checkpoint/quantization/quantized_weight.h"

// What compressed-tensors stores for a weight [rows, columns]:
//
//   weight             I8 or F8_E4M3 [rows, columns]   (int-, float-quantized)
//   weight_packed      I32 [rows, columns * bits / 32]  (pack-quantized)
//                      code + 2^(bits - 1), first ones in low bits
//                      or U8 [rows, columns / 2] of two codes of E2M1
//                      (mxfp4-pack-quantized)
//   weight_scale       by strategy, as ScaleShapes; U8 of E2M1: an exponent
//   weight_zero_point  of asymmetric codes, as the scale; packed as codes are,
//                      but along the rows, or I8
//   weight_shape       [2], optional
//   weight_g_idx       I32 [columns], each column's group; optional
//
// The reference is its dequantize (quantization/lifecycle/forward.py and
// forward_helpers.py): (code - zero) * scale in the scale's dtype.

namespace sluice {
namespace {

struct CompressedNames {
  explicit CompressedNames(const std::string& module)
      : weight(module + ".weight"),
        packed(weight + "_packed"),
        scale(weight + "_scale"),
        zeros(weight + "_zero_point"),
        shape(weight + "_shape"),
        g_idx(weight + "_g_idx") {}
  std::string weight, packed, scale, zeros, shape, g_idx;
};

int64_t CeilDiv(int64_t x, int64_t y) { return (x + y - 1) / y; }

// The rows and columns that share a scale.
Float8Weight::Block BlockOf(const QuantizedFormat& format,
                            const WeightPlace& place) {
  switch (format.strategy) {
    case ScaleStrategy::kTensor:
      return {place.rows, place.columns};
    case ScaleStrategy::kChannel:
      return {1, place.columns};
    case ScaleStrategy::kGroup:
      return {1, format.group_size};
    case ScaleStrategy::kBlock:
      return {format.block_rows, format.block_columns};
  }
  return {};
}

class CompressedIntegers final : public IntegerWeight {
 public:
  CompressedIntegers(const WeightPlace& place, const QuantizedFormat& format,
                     const StoredTensors& tensors, bool packed, DType rounding)
      : IntegerWeight(place, {format.bits, BlockOf(format, place).columns,
                              ZeroBits(format, tensors, place), rounding}),
        names_(place.module),
        packed_(packed),
        symmetric_(format.symmetric),
        block_(BlockOf(format, place)),
        row_bytes_(packed ? CeilDiv(place.columns * format.bits, 32) * 4
                          : place.columns) {
    parts_ = {codes_name(), names_.scale};
    if (!symmetric_) parts_.push_back(names_.zeros);
    for (const std::string& name : {names_.shape, names_.g_idx}) {
      if (packed && tensors.Find(name)) parts_.push_back(name);
    }
    if (packed && tensors.Find(names_.g_idx)) order_name_ = names_.g_idx;
    order_may_be_unset_ = true;
  }

 protected:
  absl::Status LoadParts(const StoredTensors& tensors) override {
    SLUICE_ASSIGN_OR_RETURN(const std::vector<float> scales,
                            ReadNumbers(tensors, names_.scale));
    scales_.resize(rows_ * groups_);
    for (int64_t row = 0; row < rows_; ++row) {
      std::copy_n(scales.data() + row / block_.rows * groups_, groups_,
                  scales_.data() + row * groups_);
    }
    zeros_.assign(rows_ * groups_, middle());
    if (!symmetric_) SLUICE_RETURN_IF_ERROR(LoadZeros(tensors));
    const bool has_shape =
        std::find(parts_.begin(), parts_.end(), names_.shape) != parts_.end();
    return has_shape ? CheckShape(tensors) : absl::OkStatus();
  }

  absl::Status Unpack(const StoredTensors& tensors, int64_t begin, int64_t end,
                      uint8_t* codes) const override {
    std::string bytes((end - begin) * row_bytes_, '\0');
    SLUICE_RETURN_IF_ERROR(tensors.Read(codes_name(), begin * row_bytes_,
                                        end * row_bytes_, bytes.data()));
    for (int64_t row = 0; row < end - begin; ++row) {
      const char* from = bytes.data() + row * row_bytes_;
      for (int64_t i = 0; i < columns_; ++i) {
        const auto byte =
            static_cast<uint8_t>(bits_ == 4 ? from[i / 2] : from[i]);
        *codes++ = bits_ == 4 ? byte >> (i % 2 * 4) & 15
                   : packed_  ? byte
                              : byte ^ 0x80;
      }
    }
    return absl::OkStatus();
  }

 private:
  const std::string& codes_name() const {
    return packed_ ? names_.packed : names_.weight;
  }
  static int ZeroBits(const QuantizedFormat& format,
                      const StoredTensors& tensors, const WeightPlace& place) {
    if (format.symmetric) return 0;
    const std::string name = CompressedNames(place.module).zeros;
    return tensors.Find(name)->entry->dtype == "I8" ? 8 : format.bits;
  }

  absl::Status LoadZeros(const StoredTensors& tensors) {
    const SafetensorsEntry& entry = *tensors.Find(names_.zeros)->entry;
    if (entry.dtype == "I8") {
      SLUICE_ASSIGN_OR_RETURN(const std::vector<int8_t> zeros,
                              ReadIntegers<int8_t>(tensors, names_.zeros));
      for (int64_t row = 0; row < rows_; ++row) {
        for (int64_t group = 0; group < groups_; ++group) {
          zeros_[row * groups_ + group] =
              middle() + zeros[row / block_.rows * groups_ + group];
        }
      }
      return absl::OkStatus();
    }
    SLUICE_ASSIGN_OR_RETURN(const std::vector<uint32_t> words,
                            ReadIntegers<uint32_t>(tensors, names_.zeros));
    const int per_word = 32 / bits_;
    for (int64_t row = 0; row < rows_; ++row) {
      for (int64_t group = 0; group < groups_; ++group) {
        zeros_[row * groups_ + group] =
            static_cast<int32_t>(words[row / per_word * groups_ + group] >>
                                     (row % per_word * bits_) &
                                 ((1U << bits_) - 1));
      }
    }
    return absl::OkStatus();
  }

  absl::Status CheckShape(const StoredTensors& tensors) const {
    const auto place = tensors.Find(names_.shape);
    std::vector<int64_t> shape;
    if (place->entry->dtype == "I64") {
      SLUICE_ASSIGN_OR_RETURN(shape,
                              ReadIntegers<int64_t>(tensors, names_.shape));
    } else {
      SLUICE_ASSIGN_OR_RETURN(const std::vector<int32_t> narrow,
                              ReadIntegers<int32_t>(tensors, names_.shape));
      shape.assign(narrow.begin(), narrow.end());
    }
    if (shape == std::vector<int64_t>{rows_, columns_}) {
      return absl::OkStatus();
    }
    return InvalidArgument(place->path, ": ", names_.shape, " says ",
                           ShapeText(shape), ", but config.json asks for ",
                           ShapeText({rows_, columns_}));
  }

  const CompressedNames names_;
  const bool packed_;
  const bool symmetric_;
  const Float8Weight::Block block_;  // that shares a scale
  const int64_t row_bytes_;
};

absl::Status CheckZeros(const QuantizedFormat& format,
                        const StoredTensors& tensors, const WeightPlace& place,
                        const CompressedNames& names, bool packed) {
  const auto found = tensors.Find(names.zeros);
  std::vector<std::vector<int64_t>> shapes = ScaleShapes(format, place);
  if (packed && found && found->entry->dtype == "I32") {
    const int64_t groups =
        CeilDiv(place.columns, BlockOf(format, place).columns);
    shapes = {{CeilDiv(place.rows * format.bits, 32), groups}};
    return CheckPart(tensors, place, names.zeros, {"I32"}, shapes).status();
  }
  return CheckPart(tensors, place, names.zeros, {"I8"}, shapes).status();
}

// Opens a weight that is stored in this format.
absl::StatusOr<std::unique_ptr<QuantizedWeight>> OpenAs(
    const QuantizedFormat& format, const StoredTensors& tensors,
    const WeightPlace& place, const CompressedNames& names, bool packed) {
  if (format.strategy == ScaleStrategy::kGroup &&
      place.columns % format.group_size != 0) {
    return InvalidArgument(
        tensors.Find(packed ? names.packed : names.weight)->path, ": ",
        place.module, " has ", place.columns, " inputs, which groups of ",
        format.group_size, " do not divide");
  }
  if (packed && format.floats) {
    SLUICE_RETURN_IF_ERROR(CheckPart(tensors, place, names.packed, {"U8"},
                                     {{place.rows, place.columns / 2}})
                               .status());
    SLUICE_RETURN_IF_ERROR(CheckPart(tensors, place, names.scale,
                                     {"U8", "F8_E8M0"},
                                     ScaleShapes(format, place))
                               .status());
    return std::make_unique<MxFp4Weight>(place, names.packed, names.scale);
  }
  const int64_t width =
      packed ? CeilDiv(place.columns * format.bits, 32) : place.columns;
  SLUICE_RETURN_IF_ERROR(CheckPart(tensors, place,
                                   packed ? names.packed : names.weight,
                                   {packed          ? "I32"
                                    : format.floats ? "F8_E4M3"
                                                    : "I8"},
                                   {{place.rows, width}})
                             .status());
  SLUICE_ASSIGN_OR_RETURN(
      const SafetensorsEntry* scale,
      CheckPart(tensors, place, names.scale, {"BF16", "F16", "F32"},
                ScaleShapes(format, place)));
  const DType rounding = RoundingOf(scale->dtype);
  if (format.floats) {
    return std::make_unique<Float8Weight>(place, names.scale, *scale,
                                          BlockOf(format, place), rounding);
  }
  if (!format.symmetric) {
    SLUICE_RETURN_IF_ERROR(CheckZeros(format, tensors, place, names, packed));
  }
  if (packed && tensors.Find(names.shape)) {
    SLUICE_RETURN_IF_ERROR(
        CheckPart(tensors, place, names.shape, {"I64", "I32"}, {{2}}).status());
  }
  if (packed && tensors.Find(names.g_idx)) {
    SLUICE_RETURN_IF_ERROR(
        CheckPart(tensors, place, names.g_idx, {"I32"}, {{place.columns}})
            .status());
  }
  return std::make_unique<CompressedIntegers>(place, format, tensors, packed,
                                              rounding);
}

}  // namespace

absl::StatusOr<std::unique_ptr<QuantizedWeight>> OpenCompressedWeight(
    const QuantizationConfig& config, const StoredTensors& tensors,
    const WeightPlace& place) {
  const CompressedNames names(place.module);
  const auto packed = tensors.Find(names.packed);
  const auto plain = tensors.Find(names.weight);
  const auto found = packed ? packed : plain;
  if (!found) return nullptr;
  const std::string& dtype = found->entry->dtype;
  const bool floats = dtype == (packed ? "U8" : "F8_E4M3");
  if (!packed && !floats && dtype != "I8") return nullptr;
  // Which of config_groups a weight is of shows in how it is stored: the first
  // that fits is the one, and those with zero points come first if it has some.
  std::vector<QuantizedFormat> formats;
  for (const QuantizedFormat& format : config.formats) {
    const bool stored_so =
        packed ? !floats || format.bits == 4 : format.bits == 8;
    if (format.floats == floats && stored_so) {
      formats.push_back(format);
    }
  }
  if (tensors.Find(names.zeros)) {
    std::stable_partition(formats.begin(), formats.end(),
                          [](const auto& format) { return !format.symmetric; });
  }
  absl::Status first;
  for (const QuantizedFormat& format : formats) {
    absl::StatusOr<std::unique_ptr<QuantizedWeight>> weight =
        OpenAs(format, tensors, place, names, packed.has_value());
    if (weight.ok()) return weight;
    first.Update(weight.status());
  }
  if (!first.ok()) return first;
  return InvalidArgument(
      found->path, ": ", packed ? names.packed : names.weight, " has dtype ",
      dtype, ", which no group of ", "quantization_config.config_groups has");
}

}  // namespace sluice
