#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "common/types.h"

// Encodes a panel of a weight matrix, n output columns by k inputs, as
// quantized bytes, and decodes it.
//
// Groups (group_codec.h) run along the output columns: for one input, columns
// [64 g, 64 g + 64) of the panel share a scale and a minimum; the last group
// may be shorter. Bytes, little-endian:
//
//   header      64 bytes: the unit as float32, then zeros
//   parameters  [groups][2 pairs] of {scale, minimum}: those of group g and
//               input i at g * 2 * pairs + i; zeros where k is odd
//   codes       for each block of columns, for each pair of inputs, one after
//               the other for each column in the block: the codes for the even
//               and the odd input, in one byte (4 bits; even in the lower half)
//               or two (8 bits). A block's columns are padded to a multiple of
//               16 if it is not full.
//
// where pairs = ceil(k / 2). Blocks follow the order of elements that the
// weights' consumer wants, so that both sides are read and written from front
// to back.

namespace sluice {

// An order of a panel's elements in memory: blocks of `block` columns; within a
// block, from input to input, `interleave` inputs at a time, the block's
// columns. Columns are padded to whole blocks, inputs to padded_k, with zeros.
// oneDNN's packed layouts for AVX-512 and AMX have this form, and so has a
// plain [k, n] matrix (one block).
struct PanelOrder {
  int32_t block = 0;
  int32_t interleave = 1;  // 1 or 2
  int32_t padded_k = 0;    // a multiple of interleave

  size_t Position(int32_t column, int32_t input) const {
    const size_t in_block =
        static_cast<size_t>(input / interleave) * block * interleave +
        column % block * interleave + input % interleave;
    return static_cast<size_t>(column / block) * padded_k * block + in_block;
  }
};

class PanelCodec {
 public:
  static constexpr int32_t kMaxColumns = 256;

  PanelCodec() = default;
  // 1 <= n <= kMaxColumns; bits: 4 or 8; dtype: of the decoded elements.
  // order.block is a multiple of 16, or covers all columns; order.padded_k is
  // at least k. interleave 2 is for bfloat16 alone.
  PanelCodec(int32_t n, int32_t k, int bits, DType dtype, PanelOrder order);

  // The size of an encoded panel, a multiple of 64.
  size_t encoded_bytes() const { return encoded_bytes_; }
  size_t decoded_bytes() const;

  // Quantizes rows, [n, k] float32, one row per output column. Writes
  // encoded_bytes(). kInvalidArgument for weights that ChooseQuantUnit refuses.
  absl::Status Encode(const float* rows, std::byte* out) const;

  // Writes decoded_bytes(), padding included; bfloat16 is rounded to nearest,
  // ties to even. The same bits on every instruction set.
  void Decode(const std::byte* encoded, void* out) const;

  // These are for the kernels.
  int32_t n() const { return n_; }
  int32_t k() const { return k_; }
  int bits() const { return bits_; }
  DType dtype() const { return dtype_; }
  const PanelOrder& order() const { return order_; }
  int32_t pairs() const { return (k_ + 1) / 2; }
  int32_t blocks() const { return (n_ + order_.block - 1) / order_.block; }
  // The number of columns with codes in a block.
  int32_t block_columns(int32_t block) const;
  size_t codes_offset() const { return codes_offset_; }
  // The offset of a block's codes, relative to codes_offset().
  size_t block_codes_offset(int32_t block) const;

 private:
  // Stores codes [columns, width] for columns of one block from `column` on,
  // and inputs from `input` on, which is even.
  void StoreCodes(const uint8_t* from, int32_t columns, int32_t width,
                  int32_t column, int32_t input, uint8_t* codes) const;

  int32_t n_ = 0;
  int32_t k_ = 0;
  int bits_ = 0;
  DType dtype_ = DType::kFloat32;
  PanelOrder order_;
  size_t codes_offset_ = 0;
  size_t encoded_bytes_ = 0;
};

}  // namespace sluice
