#pragma once

#include <cstddef>
#include <cstdint>

#include "common/number_format.h"

namespace sluice {

// Positions of a sequence's K and V that one page holds. A multiple of every
// vector width, so that a page's scores are whole vectors.
inline constexpr int32_t kPageTokens = 32;

// Returns the pages that the first `positions` positions of a sequence take.
inline constexpr int32_t PagesOf(int32_t positions) {
  return static_cast<int32_t>((int64_t{positions} + kPageTokens - 1) /
                              kPageTokens);
}

// Neighbouring elements of a head that share a scale and a minimum, in the
// quantized formats (FlexGen, section 5: "group-wise quantization", with groups
// of 64 along the hidden dimension). The last group of a head may be smaller.
inline constexpr int32_t kKvGroup = 64;

// The layout of a page of one layer in memory: the blocks of its KV heads, one
// after the other. A page holds nothing that depends on its address: it may be
// copied, or written to disk and read elsewhere, as it is.
//
// A head's block, in formats kFloat32 and kBFloat16:
//
//   K  [head_dim][kPageTokens]   transposed
//   V  [kPageTokens][head_dim]
//
// With K transposed, the scores of neighbouring positions are neighbouring
// lanes: no horizontal sums, and each score is summed in the same order whether
// it is computed for one query or for many.
//
// In formats kInt8 and kInt4, with G = ceil(head_dim / kKvGroup) groups:
//
//   K codes   [ceil(head_dim / 4)][kPageTokens][4]: by fours of elements, so
//             that a 32-bit lane holds four elements of one position
//   K scales  G x {fp16 scale[kPageTokens], fp16 minimum[kPageTokens]}
//   V codes   [kPageTokens][v_row_bytes()], then up to a multiple of 64 bytes
//   V scales  as K's
//
// An element is scale * code + minimum. kInt8 has a byte per code. kInt4 has
// two codes in a byte: for K, byte [i][j][e] holds position j (low four bits)
// and j + 16 (high), j < 16; for V, each 32 elements of a row are 16 bytes, of
// which byte b holds elements b and b + 16; a last part of w < 32 elements has
// h = ceil(w / 2) bytes with elements b and b + h. Codes that stand for no
// element are 0.
struct KvLayout {
  int32_t num_layers = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  KvFormat format = KvFormat::kFloat32;
  // A page of one layer is rounded up to this: 64, or a disk's block if pages
  // are to be written there. A multiple of 64.
  size_t page_alignment = 64;

  bool quantized() const {
    return format == KvFormat::kInt8 || format == KvFormat::kInt4;
  }
  // Returns the bytes of an element in a format that is not quantized.
  size_t element_bytes() const { return format == KvFormat::kFloat32 ? 4 : 2; }
  // Returns the number of groups in a head.
  int32_t groups() const { return (head_dim + kKvGroup - 1) / kKvGroup; }

  // The offsets within a head's block, and its bytes, are multiples of 64.
  size_t k_scales_offset() const;  // quantized formats only
  size_t v_offset() const;
  size_t v_row_bytes() const;
  size_t v_scales_offset() const;  // quantized formats only
  // Returns the bytes of one position's V: its row, and any scales and minima.
  size_t v_position_bytes() const {
    return v_row_bytes() + (quantized() ? groups() * 2 * sizeof(uint16_t) : 0);
  }
  size_t head_bytes() const;

  // The offset of a head's block in a page of one layer, and the bytes of such
  // a page, a multiple of page_alignment.
  size_t head_offset(int32_t kv_head) const { return kv_head * head_bytes(); }
  size_t layer_page_bytes() const {
    return (num_kv_heads * head_bytes() + page_alignment - 1) / page_alignment *
           page_alignment;
  }
  // Returns the bytes of a page of all layers.
  size_t page_bytes() const { return layer_page_bytes() * num_layers; }

  // Kernels load whole vectors: up to so many bytes behind the last page must
  // be readable. Their contents don't matter.
  static constexpr size_t kSlackBytes = 256;
};

}  // namespace sluice
