#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "runtime/model/checkpoint/quantization/quantized_weight.h"

namespace sluice {

// A weight in OCP's MXFP4 ("Microscaling Formats (MX) Specification", 5.2): two
// codes of E2M1 a byte, the first in the lower half, and for each 32 columns an
// exponent of 8 bits (E8M0). A weight of -0 is read as 0.
class MxFp4Weight final : public QuantizedWeight {
 public:
  static constexpr int64_t kGroup = 32;

  // The tensors `codes` U8 [rows, columns / 2] and `scales` U8 or F8_E8M0
  // [rows, columns / 32], or stacks of such.
  MxFp4Weight(const WeightPlace& place, const std::string& codes,
              const std::string& scales);

  absl::StatusOr<const CodeFormat*> FindFormat(
      const StoredTensors& tensors) const override;
  absl::Status Load(const StoredTensors& tensors) override;
  absl::Status ReadRows(const StoredTensors& tensors, int64_t begin,
                        int64_t end, float* out) const override;
  absl::Status ReadCodes(const StoredTensors& tensors, int64_t begin,
                         int64_t end, std::byte* out) const override;

 private:
  struct Row;
  // Reads the codes and exponents of a row.
  absl::Status ReadRow(const StoredTensors& tensors, int64_t row,
                       Row* out) const;

  const std::string codes_name_;
  const std::string scales_name_;
  const int64_t base_;  // the row of the tensors that is the weight's first
  const int64_t columns_;
};

}  // namespace sluice
