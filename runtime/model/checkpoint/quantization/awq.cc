#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/status_macros.h"
#include "runtime/model/checkpoint/quantization/integer_weight.h"
#include "runtime/model/checkpoint/quantization/quantized_weight.h"

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

// A weight as AutoAWQ's version "gemm" stores it, [inputs, outputs]:
//
//   qweight  I32 [columns, rows / 8]  codes, of which eight are interleaved
//   qzeros   I32 [groups, rows / 8]   zero points, likewise
//   scales   F16 [groups, rows]
//
// The reference is AutoAWQ's dequantize_gemm (awq/utils/packing_utils.py):
// (code - zero) * scale in the scales' dtype.
class AwqWeight final : public IntegerWeight {
 public:
  struct Names {
    std::string qweight, qzeros, scales;
  };
  AwqWeight(const WeightPlace& place, int64_t group, Names names,
            DType rounding)
      : IntegerWeight(place, {kBits, group, kBits, rounding}),
        names_(std::move(names)) {
    parts_ = {names_.qweight, names_.qzeros, names_.scales};
  }

 protected:
  absl::Status LoadParts(const StoredTensors& tensors) override {
    SLUICE_ASSIGN_OR_RETURN(words_,
                            ReadIntegers<uint32_t>(tensors, names_.qweight));
    SLUICE_ASSIGN_OR_RETURN(const std::vector<float> scales,
                            ReadNumbers(tensors, names_.scales));
    scales_ = Transposed(scales, groups_, rows_);
    SLUICE_ASSIGN_OR_RETURN(const std::vector<uint32_t> zeros,
                            ReadIntegers<uint32_t>(tensors, names_.qzeros));
    zeros_.resize(groups_ * rows_);
    for (int64_t group = 0; group < groups_; ++group) {
      for (int64_t row = 0; row < rows_; ++row) {
        zeros_[row * groups_ + group] =
            CodeOf(zeros[(group * rows_ + row) / kPerWord], row);
      }
    }
    return absl::OkStatus();
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

 private:
  const Names names_;
  std::vector<uint32_t> words_;  // of qweight
};

}  // namespace

absl::StatusOr<std::unique_ptr<QuantizedWeight>> OpenAwqWeight(
    const QuantizationConfig& config, const StoredTensors& tensors,
    const WeightPlace& place) {
  AwqWeight::Names names{place.module + ".qweight", place.module + ".qzeros",
                         place.module + ".scales"};
  const auto qweight = tensors.Find(names.qweight);
  if (!qweight) return nullptr;
  const QuantizedFormat& format = config.formats[0];
  const int64_t size =
      format.group_size > 0 ? format.group_size : place.columns;
  if (place.columns % size != 0) {
    return InvalidArgument(qweight->path, ": ", names.qweight, " has ",
                           place.columns, " inputs, which groups of ", size,
                           " do not divide");
  }
  if (place.rows % kPerWord != 0) {
    return InvalidArgument(qweight->path, ": ", names.qweight, " packs ",
                           kPerWord, " codes in a word, which must divide the ",
                           "weight's ", place.rows, " outputs");
  }
  const int64_t groups = place.columns / size;
  SLUICE_RETURN_IF_ERROR(CheckPart(tensors, place, names.qweight, {"I32"},
                                   {{place.columns, place.rows / kPerWord}})
                             .status());
  SLUICE_RETURN_IF_ERROR(CheckPart(tensors, place, names.qzeros, {"I32"},
                                   {{groups, place.rows / kPerWord}})
                             .status());
  SLUICE_ASSIGN_OR_RETURN(
      const SafetensorsEntry* scales,
      CheckPart(tensors, place, names.scales, {"F16", "BF16", "F32"},
                {{groups, place.rows}}));
  return std::make_unique<AwqWeight>(place, size, std::move(names),
                                     RoundingOf(scales->dtype));
}

}  // namespace sluice
