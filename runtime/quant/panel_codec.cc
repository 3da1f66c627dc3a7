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
      for (int32_t i = 0; i < size; ++i) {
        const int32_t block = (first + i) / order_.block;
        const size_t stride = block_columns(block);
        uint8_t* column = codes + block_codes_offset(block) +
                          ((first + i) % order_.block) * (bits_ == 4 ? 1 : 2);
        const uint8_t* from = part + i * width;
        // k is even here.
        for (int32_t j = 0; j < width; ++j) {
          const size_t pair = (k + j) / 2;
          if (bits_ == 8) {
            column[pair * stride * 2 + j % 2] = from[j];
          } else {
            column[pair * stride] |=
                static_cast<uint8_t>(from[j] << 4 * (j % 2));
          }
        }
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
