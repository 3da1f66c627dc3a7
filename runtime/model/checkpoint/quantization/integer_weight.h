#pragma once

#include <cstdint>
#include <vector>

#include "runtime/model/checkpoint/quantization/quantized_weight.h"

namespace sluice {

// A weight of integer codes: each weight is scale * (code - zero point), the
// product rounded to `rounding`. All else that a code is combined with is exact
// in float32: a code and a zero point have at most 9 bits, a scale of 16 bits
// at most 11.
class IntegerWeight : public QuantizedWeight {
 public:
  absl::Status ReadRows(const StoredTensors& tensors, int64_t begin,
                        int64_t end, float* out) const final;

 protected:
  // `bits`, 4 or 8, of a code.
  IntegerWeight(int64_t rows, int64_t columns, int bits)
      : rows_(rows), columns_(columns), bits_(bits) {}

  // Writes the codes of rows [begin, end), row-major, as unsigned numbers.
  virtual absl::Status ReadCodes(const StoredTensors& tensors, int64_t begin,
                                 int64_t end, uint8_t* codes) const = 0;

  const int64_t rows_;
  const int64_t columns_;
  const int bits_;
  // Load() sets the rest.
  int64_t groups_ = 1;             // of a row
  std::vector<float> scales_;      // [rows, groups]
  std::vector<int32_t> zeros_;     // [rows, groups], of unsigned codes
  std::vector<int32_t> group_of_;  // by column; empty: equal runs of columns
  DType rounding_ = DType::kFloat32;

 private:
  // Dequantizes a row.
  void Dequantize(int64_t row, const uint8_t* codes, float* out) const;
};

// Returns [columns, rows] of a matrix [rows, columns].
template <typename T>
std::vector<T> Transposed(const std::vector<T>& from, int64_t rows,
                          int64_t columns) {
  std::vector<T> to(from.size());
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t column = 0; column < columns; ++column) {
      to[column * rows + row] = from[row * columns + column];
    }
  }
  return to;
}

// The columns of a matrix that is stored as [inputs, outputs] are rows of the
// weight: ReadCodes fetches so many of them at a time, a cache line of words.
inline constexpr int64_t kRowsAtOnce = 16;

}  // namespace sluice
