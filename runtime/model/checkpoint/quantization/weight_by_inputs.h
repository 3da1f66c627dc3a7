#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/model/checkpoint/quantization/integer_weight.h"

namespace sluice {

// A weight that is stored as [inputs, outputs], as GPTQ and AWQ have it:
//
//   qweight  I32  codes, packed in words; loaded as a whole
//   qzeros   I32 [groups, rows * bits / 32]  zero points of several rows a word
//   scales   F16 [groups, rows]
class WeightByInputs : public IntegerWeight {
 public:
  struct Names {
    explicit Names(const std::string& module)
        : qweight(module + ".qweight"),
          qzeros(module + ".qzeros"),
          scales(module + ".scales") {}
    std::string qweight, qzeros, scales;
  };

  // Checks the three tensors; `qweight` is the shape of the first. Returns the
  // type that products are rounded to.
  static absl::StatusOr<DType> CheckParts(const StoredTensors& tensors,
                                          const WeightPlace& place, int bits,
                                          int64_t groups,
                                          const std::vector<int64_t>& qweight);

 protected:
  WeightByInputs(const WeightPlace& place, int bits, int64_t group,
                 DType rounding)
      : IntegerWeight(place, {bits, group, bits, rounding}),
        names_(place.module) {
    parts_ = {names_.qweight, names_.qzeros, names_.scales};
  }

  absl::Status LoadParts(const StoredTensors& tensors) final;
  // Returns the zero point of a row in its word of qzeros.
  virtual int32_t ZeroOf(uint32_t word, int64_t row) const = 0;

  const Names names_;
  std::vector<uint32_t> words_;  // of qweight; LoadParts() sets them
};

}  // namespace sluice
