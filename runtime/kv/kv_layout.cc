#include "runtime/kv/kv_layout.h"

namespace sluice {
namespace {

size_t RoundUpTo64(size_t bytes) { return (bytes + 63) / 64 * 64; }

// Scales and minima of K or of V.
size_t ScaleBytes(const KvLayout& layout) {
  return static_cast<size_t>(layout.groups()) * 2 * kPageTokens *
         sizeof(uint16_t);
}

}  // namespace

size_t KvLayout::k_scales_offset() const {
  const size_t fours = (static_cast<size_t>(head_dim) + 3) / 4;
  const size_t codes = fours * 4 * kPageTokens;
  return format == KvFormat::kInt4 ? codes / 2 : codes;
}

size_t KvLayout::v_offset() const {
  if (quantized()) return k_scales_offset() + ScaleBytes(*this);
  return static_cast<size_t>(head_dim) * kPageTokens * element_bytes();
}

size_t KvLayout::v_row_bytes() const {
  const size_t n = static_cast<size_t>(head_dim);
  switch (format) {
    case KvFormat::kInt8:
      return n;
    case KvFormat::kInt4:
      return (n + 1) / 2;
    default:
      return n * element_bytes();
  }
}

size_t KvLayout::v_scales_offset() const {
  return v_offset() + RoundUpTo64(v_row_bytes() * kPageTokens);
}

size_t KvLayout::head_bytes() const {
  return v_scales_offset() + (quantized() ? ScaleBytes(*this) : 0);
}

}  // namespace sluice
