#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/model/checkpoint/quantization/quantized_weight.h"

namespace sluice {

// A weight of float8 codes, stored by rows: each is code * scale in float32,
// rounded to `rounding`.
class Float8Weight final : public QuantizedWeight {
 public:
  // A scale is that of a block of so many rows and columns.
  struct Block {
    int64_t rows = 0;
    int64_t columns = 0;
  };
  // `scale` describes the tensor scale_name: a scale for each block, row by
  // row, or one for all.
  Float8Weight(const WeightPlace& place, const std::string& scale_name,
               const SafetensorsEntry& scale, Block block, DType rounding);

  absl::StatusOr<const CodeFormat*> FindFormat(
      const StoredTensors& tensors) const override;
  absl::Status Load(const StoredTensors& tensors) override;
  absl::Status ReadRows(const StoredTensors& tensors, int64_t begin,
                        int64_t end, float* out) const override;
  absl::Status ReadCodes(const StoredTensors& tensors, int64_t begin,
                         int64_t end, std::byte* out) const override;

 private:
  // Returns the scales of a row, one for each block.
  const float* ScalesOf(int64_t row) const;

  const std::string name_;
  const std::string scale_name_;
  const int64_t columns_;
  const Block block_;
  const DType rounding_;
  std::vector<float> scales_;
};

// Returns the shapes that the scales of a weight may have. REQUIRES: a group's
// size divides the columns.
std::vector<std::vector<int64_t>> ScaleShapes(const QuantizedFormat& format,
                                              const WeightPlace& place);

}  // namespace sluice
