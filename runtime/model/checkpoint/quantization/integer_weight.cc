#include "runtime/model/checkpoint/quantization/integer_weight.h"

#include <algorithm>
#include <cstring>

#include "common/status_macros.h"

namespace sluice {

absl::StatusOr<std::vector<int32_t>> IntegerWeight::ReadOrder(
    const StoredTensors& tensors) const {
  std::vector<int32_t> order;
  if (!order_name_.empty()) {
    SLUICE_ASSIGN_OR_RETURN(order, ReadIntegers<int32_t>(tensors, order_name_));
    if (order_may_be_unset_ &&
        std::find(order.begin(), order.end(), -1) != order.end()) {
      order.clear();
    }
  }
  if (order.empty() && columns_ % group_ == 0) return order;
  bool in_order = columns_ % group_ == 0;
  const bool given = !order.empty();
  order.resize(columns_);
  for (int64_t i = 0; i < columns_; ++i) {
    if (!given) order[i] = static_cast<int32_t>(i / group_);
    if (order[i] < 0 || order[i] >= groups_) {
      return InvalidArgument(tensors.Find(order_name_)->path, ": ", order_name_,
                             " has group ", order[i], " at ", i,
                             ", but there are ", groups_, " groups");
    }
    in_order = in_order && order[i] == i / group_;
  }
  if (in_order) order.clear();
  return order;
}

const CodeFormat* IntegerWeight::FormatInOrder(bool in_order) const {
  const CodeFormat* const format = FindScaledFormat(
      {.code = bits_ == 4 ? ScaledCodes::Code::kInt4 : ScaledCodes::Code::kInt8,
       .group = groups_ == 1 ? 0 : static_cast<int32_t>(group_),
       .scale = rounding_,
       .zero_bits = zero_bits_,
       .shared = false,
       .any_order = !in_order});
  return format != nullptr && format->Fits(columns_) ? format : nullptr;
}

absl::StatusOr<const CodeFormat*> IntegerWeight::FindFormat(
    const StoredTensors& tensors) const {
  SLUICE_ASSIGN_OR_RETURN(const std::vector<int32_t> order, ReadOrder(tensors));
  return FormatInOrder(order.empty());
}

absl::Status IntegerWeight::Load(const StoredTensors& tensors) {
  SLUICE_ASSIGN_OR_RETURN(group_of_, ReadOrder(tensors));
  format_ = FormatInOrder(group_of_.empty());
  return LoadParts(tensors);
}

void IntegerWeight::WriteRest(int64_t row, std::byte* out) const {
  out = WriteScales(
      {scales_.data() + row * groups_, static_cast<size_t>(groups_)},
      format_->scaled->stored(), out);
  for (int64_t group = 0; zero_bits_ > 0 && group < groups_; ++group) {
    *out++ = static_cast<std::byte>(zeros_[row * groups_ + group] - middle());
  }
  for (const int32_t group : group_of_) *out++ = static_cast<std::byte>(group);
}

absl::Status IntegerWeight::ReadCodes(const StoredTensors& tensors,
                                      int64_t begin, int64_t end,
                                      std::byte* out) const {
  const size_t row_bytes = format_->row_bytes(columns_);
  const size_t code_bytes = static_cast<size_t>(columns_) * bits_ / 8;
  std::vector<uint8_t> codes(kRowsAtOnce * columns_);
  while (begin < end) {
    const int64_t next = std::min(end, (begin / kRowsAtOnce + 1) * kRowsAtOnce);
    SLUICE_RETURN_IF_ERROR(Unpack(tensors, begin, next, codes.data()));
    const uint8_t* from = codes.data();
    for (; begin < next; ++begin, from += columns_, out += row_bytes) {
      if (bits_ == 8) {
        std::memcpy(out, from, code_bytes);
      } else {
        for (size_t i = 0; i < code_bytes; ++i) {
          out[i] = static_cast<std::byte>(from[2 * i] | from[2 * i + 1] << 4);
        }
      }
      WriteRest(begin, out + code_bytes);
    }
  }
  return absl::OkStatus();
}

absl::Status IntegerWeight::ReadRows(const StoredTensors& tensors,
                                     int64_t begin, int64_t end,
                                     float* out) const {
  std::vector<uint8_t> codes(kRowsAtOnce * columns_);
  while (begin < end) {
    // Runs end where a panel of words does.
    const int64_t next = std::min(end, (begin / kRowsAtOnce + 1) * kRowsAtOnce);
    SLUICE_RETURN_IF_ERROR(Unpack(tensors, begin, next, codes.data()));
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
  const int64_t size = group_;
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
