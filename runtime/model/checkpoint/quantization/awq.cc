#include <memory>
#include <string>
#include <vector>

#include "common/status_macros.h"
#include "runtime/model/checkpoint/quantization/quantized_weight.h"
#include "runtime/model/checkpoint/quantization/weight_by_inputs.h"

namespace sluice {
namespace {

constexpr int kBits = 4;
constexpr int kPerWord = 8;
// Of eight neighbouring rows, the place of each in a word, lowest first.
constexpr int kPlace[kPerWord] = {0, 4, 1, 5, 2, 6, 3, 7};

// Returns the code of a row in its word.
uint8_t CodeOf(uint32_t word, int64_t row) {
  return word >> (kBits * kPlace[row % kPerWord]) & 15U;
}

// A weight as AutoAWQ's version "gemm" stores it: qweight is [columns, rows /
// 8], and of eight neighbouring rows' codes and zero points a word has the even
// ones first.
//
// The reference is AutoAWQ's dequantize_gemm (awq/utils/packing_utils.py):
// (code - zero) * scale in the scales' dtype.
class AwqWeight final : public WeightByInputs {
 public:
  AwqWeight(const WeightPlace& place, int64_t group, DType rounding)
      : WeightByInputs(place, kBits, group, rounding) {}

 protected:
  int32_t ZeroOf(uint32_t word, int64_t row) const override {
    return CodeOf(word, row);
  }

  absl::Status Unpack(const StoredTensors&, int64_t begin, int64_t end,
                      uint8_t* codes) const override {
    const uint32_t* words = words_.data();
    for (int64_t column = 0; column < columns_; ++column) {
      for (int64_t row = begin; row < end; ++row) {
        codes[(row - begin) * columns_ + column] =
            CodeOf(words[row / kPerWord], row);
      }
      words += rows_ / kPerWord;
    }
    return absl::OkStatus();
  }
};

}  // namespace

absl::StatusOr<std::unique_ptr<QuantizedWeight>> OpenAwqWeight(
    const QuantizationConfig& config, const StoredTensors& tensors,
    const WeightPlace& place) {
  const std::string name = WeightByInputs::Names(place.module).qweight;
  const auto qweight = tensors.Find(name);
  if (!qweight) return nullptr;
  const QuantizedFormat& format = config.formats[0];
  const int64_t size =
      format.group_size > 0 ? format.group_size : place.columns;
  if (place.columns % size != 0) {
    return InvalidArgument(qweight->path, ": ", name, " has ", place.columns,
                           " inputs, which groups of ", size, " do not divide");
  }
  if (place.rows % kPerWord != 0) {
    return InvalidArgument(qweight->path, ": ", name, " packs ", kPerWord,
                           " codes in a word, which must divide the ",
                           "weight's ", place.rows, " outputs");
  }
  SLUICE_ASSIGN_OR_RETURN(
      const DType rounding,
      WeightByInputs::CheckParts(tensors, place, kBits, place.columns / size,
                                 {place.columns, place.rows / kPerWord}));
  return std::make_unique<AwqWeight>(place, size, rounding);
}

}  // namespace sluice
