#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/model/checkpoint/quantization/quantized_weight.h"

namespace sluice {

// A weight of integer codes: each weight is scale * (code - zero point), the
// product rounded to `rounding`. All else that a code is combined with is exact
// in float32: a code and a zero point have at most 9 bits, a scale of 16 bits
// at most 11.
class IntegerWeight : public QuantizedWeight {
 public:
  absl::StatusOr<const CodeFormat*> FindFormat(
      const StoredTensors& tensors) const final;
  absl::Status Load(const StoredTensors& tensors) final;
  absl::Status ReadRows(const StoredTensors& tensors, int64_t begin,
                        int64_t end, float* out) const final;
  absl::Status ReadCodes(const StoredTensors& tensors, int64_t begin,
                         int64_t end, std::byte* out) const final;

 protected:
  // What codes of `bits`, 4 or 8, share: `group` columns a scale, and a zero
  // point of `zero_bits` (0: the middle code is 0).
  struct Sharing {
    int bits;
    int64_t group;
    int zero_bits;
    DType rounding;
  };
  IntegerWeight(const WeightPlace& place, const Sharing& sharing)
      : rows_(place.rows),
        columns_(place.columns),
        bits_(sharing.bits),
        group_(sharing.group),
        groups_((place.columns + group_ - 1) / group_),
        zero_bits_(sharing.zero_bits),
        rounding_(sharing.rounding) {}

  // Sets scales_, zeros_ and what Unpack() needs.
  virtual absl::Status LoadParts(const StoredTensors& tensors) = 0;
  // Writes the codes of rows [begin, end), row-major, as unsigned numbers.
  virtual absl::Status Unpack(const StoredTensors& tensors, int64_t begin,
                              int64_t end, uint8_t* codes) const = 0;
  // What is added to signed codes and zero points.
  int32_t middle() const { return 1 << (bits_ - 1); }

  const int64_t rows_;
  const int64_t columns_;
  const int bits_;
  const int64_t group_;
  const int64_t groups_;  // of a row
  const int zero_bits_;
  const DType rounding_;
  bool order_may_be_unset_ = false;  // which a group of -1 says
  // Load() sets the rest.
  std::vector<float> scales_;      // [rows, groups]
  std::vector<int32_t> zeros_;     // [rows, groups], of unsigned codes
  std::vector<int32_t> group_of_;  // by column; empty: equal runs of columns

 private:
  // Returns what group_of_ becomes.
  absl::StatusOr<std::vector<int32_t>> ReadOrder(
      const StoredTensors& tensors) const;
  const CodeFormat* FormatInOrder(bool in_order) const;
  // Writes what a row has beside its codes.
  void WriteRest(int64_t row, std::byte* out) const;
  // Dequantizes a row.
  void Dequantize(int64_t row, const uint8_t* codes, float* out) const;
};

// The columns of a matrix that is stored as [inputs, outputs] are rows of the
// weight: Unpack fetches so many of them at a time, a cache line of words.
inline constexpr int64_t kRowsAtOnce = 16;

}  // namespace sluice
