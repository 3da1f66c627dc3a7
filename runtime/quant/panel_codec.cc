#include "runtime/quant/panel_codec.h"

#include <algorithm>
#include <cstring>

#include "common/status_macros.h"
#include "runtime/quant/decode_kernels.h"
#include "runtime/quant/group_codec.h"

namespace sluice {
namespace {

constexpr size_t kHeaderBytes = 64;
constexpr size_t kAlignment = 64;
// The number of inputs quantized together, whose codes stay in L1.
constexpr int32_t kEncodeInputs = 64;

int32_t RoundUp(int32_t x, int32_t multiple) {
  return (x + multiple - 1) / multiple * multiple;
}

}  // namespace

PanelCodec::PanelCodec(int32_t n, int32_t k, int bits, DType dtype,
                       PanelOrder order)
    : n_(n), k_(k), bits_(bits), dtype_(dtype), order_(order) {
  const size_t groups = (n + kQuantGroup - 1) / kQuantGroup;
  codes_offset_ = kHeaderBytes + groups * 2 * pairs() * sizeof(GroupParams);
  const size_t end = codes_offset_ + block_codes_offset(blocks());
  encoded_bytes_ = (end + kAlignment - 1) / kAlignment * kAlignment;
}

size_t PanelCodec::decoded_bytes() const {
  return static_cast<size_t>(blocks()) * order_.block * order_.padded_k *
         (dtype_ == DType::kFloat32 ? 4 : 2);
}

int32_t PanelCodec::block_columns(int32_t block) const {
  const int32_t left = n_ - block * order_.block;
  return RoundUp(std::min(order_.block, left), 16);
}

size_t PanelCodec::block_codes_offset(int32_t block) const {
  if (block == 0) return 0;
  // All blocks but the last have equally many columns.
  const size_t columns = static_cast<size_t>(block - 1) * block_columns(0) +
                         block_columns(block - 1);
  return columns * pairs() * (bits_ == 4 ? 1 : 2);
}

void PanelCodec::StoreCodes(const uint8_t* from, int32_t columns, int32_t width,
                            int32_t column, int32_t input,
                            uint8_t* codes) const {
  const int32_t block = column / order_.block;
  const size_t stride = block_columns(block);
  const size_t bytes = bits_ == 4 ? 1 : 2;  // of a pair
  uint8_t* const first = codes + block_codes_offset(block) +
                         static_cast<size_t>(column % order_.block) * bytes;
  for (int32_t j = 0; j < width; j += 2) {
    const auto pair = static_cast<size_t>((input + j) / 2);
    uint8_t* const to = first + pair * stride * bytes;
    const uint8_t* const even = from + j;
    // A last input without a partner has zeros beside it.
    const uint8_t* const odd = j + 1 < width ? even + 1 : nullptr;
    for (int32_t c = 0; c < columns; ++c) {
      const uint8_t low = even[c * width];
      const uint8_t high = odd == nullptr ? 0 : odd[c * width];
      if (bits_ == 4) {
        to[c] = static_cast<uint8_t>(low | high << 4);
      } else {
        to[2 * c] = low;
        to[2 * c + 1] = high;
      }
    }
  }
}

absl::Status PanelCodec::Encode(const float* rows, std::byte* out) const {
  SLUICE_ASSIGN_OR_RETURN(const float unit,
                          ChooseQuantUnit(rows, static_cast<size_t>(n_) * k_));
  std::memset(out, 0, encoded_bytes_);
  std::memcpy(out, &unit, sizeof unit);
  auto* params = reinterpret_cast<GroupParams*>(out + kHeaderBytes);
  auto* codes = reinterpret_cast<uint8_t*>(out + codes_offset_);
  uint8_t part[kQuantGroup * kEncodeInputs];
  for (int32_t group = 0; group * kQuantGroup < n_; ++group) {
    const int32_t first = group * kQuantGroup;
    const int32_t size = std::min(kQuantGroup, n_ - first);
    for (int32_t k = 0; k < k_; k += kEncodeInputs) {
      const int32_t width = std::min(kEncodeInputs, k_ - k);
      QuantizeGroups(rows + static_cast<size_t>(first) * k_ + k, k_, size,
                     width, bits_, unit, part,
                     params + static_cast<size_t>(group) * 2 * pairs() + k);
      for (int32_t i = 0; i < size;) {
        const int32_t left = order_.block - (first + i) % order_.block;
        const int32_t columns = std::min(size - i, left);
        StoreCodes(part + i * width, columns, width, first + i, k, codes);
        i += columns;
      }
    }
  }
  return absl::OkStatus();
}

void PanelCodec::Decode(const std::byte* encoded, void* out) const {
  float unit;
  std::memcpy(&unit, encoded, sizeof unit);
  DecodePanel(*this, unit,
              reinterpret_cast<const GroupParams*>(encoded + kHeaderBytes),
              reinterpret_cast<const uint8_t*>(encoded + codes_offset_), out);
}

}  // namespace sluice
