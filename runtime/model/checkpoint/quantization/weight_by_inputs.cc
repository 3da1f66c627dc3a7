#include "runtime/model/checkpoint/quantization/weight_by_inputs.h"

#include "common/status_macros.h"

namespace sluice {
namespace {

// Returns [columns, rows] of a matrix [rows, columns].
std::vector<float> Transposed(const std::vector<float>& from, int64_t rows,
                              int64_t columns) {
  std::vector<float> to(from.size());
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t column = 0; column < columns; ++column) {
      to[column * rows + row] = from[row * columns + column];
    }
  }
  return to;
}

}  // namespace

absl::StatusOr<DType> WeightByInputs::CheckParts(
    const StoredTensors& tensors, const WeightPlace& place, int bits,
    int64_t groups, const std::vector<int64_t>& qweight) {
  const Names names(place.module);
  const int64_t per_word = 32 / bits;
  SLUICE_RETURN_IF_ERROR(
      CheckPart(tensors, place, names.qweight, {"I32"}, {qweight}).status());
  SLUICE_RETURN_IF_ERROR(CheckPart(tensors, place, names.qzeros, {"I32"},
                                   {{groups, place.rows / per_word}})
                             .status());
  SLUICE_ASSIGN_OR_RETURN(
      const SafetensorsEntry* scales,
      CheckPart(tensors, place, names.scales, {"F16", "BF16", "F32"},
                {{groups, place.rows}}));
  return RoundingOf(scales->dtype);
}

absl::Status WeightByInputs::LoadParts(const StoredTensors& tensors) {
  SLUICE_ASSIGN_OR_RETURN(words_,
                          ReadIntegers<uint32_t>(tensors, names_.qweight));
  SLUICE_ASSIGN_OR_RETURN(const std::vector<float> scales,
                          ReadNumbers(tensors, names_.scales));
  scales_ = Transposed(scales, groups_, rows_);
  SLUICE_ASSIGN_OR_RETURN(const std::vector<uint32_t> zeros,
                          ReadIntegers<uint32_t>(tensors, names_.qzeros));
  const int per_word = 32 / bits_;
  zeros_.resize(groups_ * rows_);
  for (int64_t group = 0; group < groups_; ++group) {
    for (int64_t row = 0; row < rows_; ++row) {
      zeros_[row * groups_ + group] =
          ZeroOf(zeros[(group * rows_ + row) / per_word], row);
    }
  }
  return absl::OkStatus();
}

}  // namespace sluice
