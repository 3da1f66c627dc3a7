#include <memory>
#include <string>
#include <vector>

#include "common/status_macros.h"
#include "runtime/model/checkpoint/quantization/quantized_weight.h"
#include "runtime/model/checkpoint/quantization/weight_by_inputs.h"

namespace sluice {
namespace {

// A weight as GPTQ's packers store it: qweight is [columns * bits / 32, rows];
// of a word's codes and zero points the first are in the low bits. Beside it
// may be
//
//   g_idx  I32 [columns]  each column's group
//
// The reference is GPTQModel's PackableQuantLinear.dequantize_weight
// (nn_modules/qlinear/__init__.py): scales[g] * (code - zero) in the scales'
// dtype; of format "gptq" its convert_gptq_v1_to_v2_format_module
// (utils/model.py) first adds 1 to each zero point of a word, with carry.
class GptqWeight final : public WeightByInputs {
 public:
  GptqWeight(const WeightPlace& place, int bits, int64_t group, DType rounding,
             const std::string& g_idx, bool zeros_less_one)
      : WeightByInputs(place, bits, group, rounding),
        zeros_less_one_(zeros_less_one) {
    if (!g_idx.empty()) parts_.push_back(g_idx);
    order_name_ = g_idx;
  }

 protected:
  int32_t ZeroOf(uint32_t word, int64_t row) const override {
    if (zeros_less_one_) word += 0xffffffffU / mask();
    return static_cast<int32_t>(word >> (row % (32 / bits_) * bits_) & mask());
  }

  absl::Status Unpack(const StoredTensors&, int64_t begin, int64_t end,
                      uint8_t* codes) const override {
    const int per_word = 32 / bits_;
    const uint32_t* words = words_.data();
    for (int64_t column = 0; column < columns_; column += per_word) {
      for (int64_t row = begin; row < end; ++row) {
        uint32_t word = words[row];
        uint8_t* to = codes + (row - begin) * columns_ + column;
        for (int i = 0; i < per_word; ++i, word >>= bits_) {
          to[i] = static_cast<uint8_t>(word & mask());
        }
      }
      words += rows_;
    }
    return absl::OkStatus();
  }

 private:
  uint32_t mask() const { return (1U << bits_) - 1; }

  const bool zeros_less_one_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<QuantizedWeight>> OpenGptqWeight(
    const QuantizationConfig& config, const StoredTensors& tensors,
    const WeightPlace& place) {
  const std::string name = WeightByInputs::Names(place.module).qweight;
  std::string g_idx = place.module + ".g_idx";
  const auto qweight = tensors.Find(name);
  if (!qweight) return nullptr;
  const QuantizedFormat& format = config.formats[0];
  const int64_t per_word = 32 / format.bits;
  if (place.rows % per_word != 0 || place.columns % per_word != 0) {
    return InvalidArgument(qweight->path, ": ", name, " packs ", per_word,
                           " codes in a word, which must divide ",
                           "the weight's ",
                           ShapeText({place.rows, place.columns}));
  }
  if (!tensors.Find(g_idx)) g_idx.clear();
  const int64_t size =
      format.group_size > 0 ? format.group_size : place.columns;
  // The last group may be cut.
  const int64_t groups = (place.columns + size - 1) / size;
  if (place.columns % size != 0 && g_idx.empty()) {
    return InvalidArgument(qweight->path, ": ", name, " has ", place.columns,
                           " inputs, which groups of ", size, " do not divide");
  }
  SLUICE_ASSIGN_OR_RETURN(
      const DType rounding,
      WeightByInputs::CheckParts(tensors, place, format.bits, groups,
                                 {place.columns / per_word, place.rows}));
  if (!g_idx.empty()) {
    SLUICE_RETURN_IF_ERROR(
        CheckPart(tensors, place, g_idx, {"I32"}, {{place.columns}}).status());
  }
  return std::make_unique<GptqWeight>(place, format.bits, size, rounding, g_idx,
                                      config.zeros_less_one);
}

}  // namespace sluice
