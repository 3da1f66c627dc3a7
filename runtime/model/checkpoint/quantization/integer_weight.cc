#include "runtime/model/checkpoint/quantization/integer_weight.h"

#include <algorithm>

#include "common/status_macros.h"

namespace sluice {

absl::Status IntegerWeight::ReadRows(const StoredTensors& tensors,
                                     int64_t begin, int64_t end,
                                     float* out) const {
  std::vector<uint8_t> codes(kRowsAtOnce * columns_);
  while (begin < end) {
    // Runs end where a panel of words does.
    const int64_t next = std::min(end, (begin / kRowsAtOnce + 1) * kRowsAtOnce);
    SLUICE_RETURN_IF_ERROR(ReadCodes(tensors, begin, next, codes.data()));
    for (int64_t row = begin; row < next; ++row, out += columns_) {
      Dequantize(row, codes.data() + (row - begin) * columns_, out);
    }
    begin = next;
  }
  return absl::OkStatus();
}

void IntegerWeight::Dequantize(int64_t row, const uint8_t* codes,
                               float* out) const {
  const float* const scales = scales_.data() + row * groups_;
  const int32_t* const zeros = zeros_.data() + row * groups_;
  const auto weight = [&](int64_t group, int32_t code) {
    return scales[group] * static_cast<float>(code - zeros[group]);
  };
  if (!group_of_.empty()) {
    for (int64_t i = 0; i < columns_; ++i) {
      out[i] = RoundTo(rounding_, weight(group_of_[i], codes[i]));
    }
    return;
  }
  const int64_t size = columns_ / groups_;
  for (int64_t group = 0; group < groups_; ++group) {
    if (bits_ == 4 && size >= 32) {
      float numbers[16];
      for (int32_t code = 0; code < 16; ++code) {
        numbers[code] = RoundTo(rounding_, weight(group, code));
      }
      for (int64_t i = 0; i < size; ++i) out[i] = numbers[codes[i] & 15];
    } else {
      for (int64_t i = 0; i < size; ++i) out[i] = weight(group, codes[i]);
      if (rounding_ != DType::kFloat32) {
        for (int64_t i = 0; i < size; ++i) out[i] = RoundTo(rounding_, out[i]);
      }
    }
    codes += size;
    out += size;
  }
}

}  // namespace sluice
