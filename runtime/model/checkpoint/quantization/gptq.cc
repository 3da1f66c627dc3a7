#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "runtime/model/checkpoint/quantization/integer_weight.h"
#include "runtime/model/checkpoint/quantization/quantized_weight.h"

namespace sluice {
namespace {

// A weight as GPTQ's packers store it, [inputs, outputs]:
//
//   qweight  I32 [columns * bits / 32, rows]   codes, first ones in low bits
//   qzeros   I32 [groups, rows * bits / 32]    zero points, likewise
//   scales   F16 [groups, rows]
//   g_idx    I32 [columns]                     each column's group; optional
//
// The reference is GPTQModel's PackableQuantLinear.dequantize_weight
// (nn_modules/qlinear/__init__.py): scales[g] * (code - zero) in the scales'
// dtype; of format "gptq" its convert_gptq_v1_to_v2_format_module
// (utils/model.py) first adds 1 to each zero point of a word, with carry.
class GptqWeight final : public IntegerWeight {
 public:
  struct Names {
    std::string qweight, qzeros, scales, g_idx;
  };
  GptqWeight(const WeightPlace& place, int bits, int64_t group, Names names,
             DType rounding, bool zeros_less_one)
      : IntegerWeight(place, {bits, group, bits, rounding}),
        names_(std::move(names)),
        zeros_less_one_(zeros_less_one) {
    parts_ = {names_.qweight, names_.qzeros, names_.scales};
    if (!names_.g_idx.empty()) parts_.push_back(names_.g_idx);
    order_name_ = names_.g_idx;
  }

 protected:
  absl::Status LoadParts(const StoredTensors& tensors) override {
    SLUICE_ASSIGN_OR_RETURN(words_,
                            ReadIntegers<uint32_t>(tensors, names_.qweight));
    SLUICE_ASSIGN_OR_RETURN(const std::vector<float> scales,
                            ReadNumbers(tensors, names_.scales));
    scales_ = Transposed(scales, groups_, rows_);
    SLUICE_ASSIGN_OR_RETURN(std::vector<uint32_t> zeros,
                            ReadIntegers<uint32_t>(tensors, names_.qzeros));
    const int per_word = 32 / bits_;
    const uint32_t mask = (1U << bits_) - 1;
    const uint32_t ones = 0xffffffffU / mask;
    zeros_.resize(groups_ * rows_);
    for (int64_t group = 0; group < groups_; ++group) {
      for (int64_t row = 0; row < rows_; ++row) {
        uint32_t word = zeros[(group * rows_ + row) / per_word];
        if (zeros_less_one_) word += ones;
        zeros_[row * groups_ + group] =
            static_cast<int32_t>(word >> (row % per_word * bits_) & mask);
      }
    }
    return absl::OkStatus();
  }

  absl::Status Unpack(const StoredTensors&, int64_t begin, int64_t end,
                      uint8_t* codes) const override {
    const int per_word = 32 / bits_;
    const uint32_t mask = (1U << bits_) - 1;
    const uint32_t* words = words_.data();
    for (int64_t column = 0; column < columns_; column += per_word) {
      for (int64_t row = begin; row < end; ++row) {
        uint32_t word = words[row];
        uint8_t* to = codes + (row - begin) * columns_ + column;
        for (int i = 0; i < per_word; ++i, word >>= bits_) to[i] = word & mask;
      }
      words += rows_;
    }
    return absl::OkStatus();
  }

 private:
  const Names names_;
  const bool zeros_less_one_;
  std::vector<uint32_t> words_;  // of qweight
};

}  // namespace

absl::StatusOr<std::unique_ptr<QuantizedWeight>> OpenGptqWeight(
    const QuantizationConfig& config, const StoredTensors& tensors,
    const WeightPlace& place) {
  GptqWeight::Names names{place.module + ".qweight", place.module + ".qzeros",
                          place.module + ".scales", place.module + ".g_idx"};
  const auto qweight = tensors.Find(names.qweight);
  if (!qweight) return nullptr;
  const QuantizedFormat& format = config.formats[0];
  const int64_t per_word = 32 / format.bits;
  if (place.rows % per_word != 0 || place.columns % per_word != 0) {
    return InvalidArgument(qweight->path, ": ", names.qweight, " packs ",
                           per_word, " codes in a word, which must divide ",
                           "the weight's ",
                           ShapeText({place.rows, place.columns}));
  }
  if (!tensors.Find(names.g_idx)) names.g_idx.clear();
  const int64_t size =
      format.group_size > 0 ? format.group_size : place.columns;
  // The last group may be cut.
  const int64_t groups = (place.columns + size - 1) / size;
  if (place.columns % size != 0 && names.g_idx.empty()) {
    return InvalidArgument(qweight->path, ": ", names.qweight, " has ",
                           place.columns, " inputs, which groups of ", size,
                           " do not divide");
  }
  SLUICE_RETURN_IF_ERROR(CheckPart(tensors, place, names.qweight, {"I32"},
                                   {{place.columns / per_word, place.rows}})
                             .status());
  SLUICE_RETURN_IF_ERROR(CheckPart(tensors, place, names.qzeros, {"I32"},
                                   {{groups, place.rows / per_word}})
                             .status());
  SLUICE_ASSIGN_OR_RETURN(
      const SafetensorsEntry* scales,
      CheckPart(tensors, place, names.scales, {"F16", "BF16", "F32"},
                {{groups, place.rows}}));
  if (!names.g_idx.empty()) {
    SLUICE_RETURN_IF_ERROR(
        CheckPart(tensors, place, names.g_idx, {"I32"}, {{place.columns}})
            .status());
  }
  return std::make_unique<GptqWeight>(
      place, format.bits, size, std::move(names), RoundingOf(scales->dtype),
      config.zeros_less_one);
}

}  // namespace sluice
