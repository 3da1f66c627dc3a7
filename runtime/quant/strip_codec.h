#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "common/types.h"
#include "runtime/model/code_format.h"
#include "runtime/quant/panel_codec.h"

// Keeps rows of a weight matrix in the codes that a checkpoint has (CodeFormat)
// and decodes them to a GEMM's panel. The unit is a strip: 16 output columns of
// the panel, rows of the matrix, by all k inputs, in one format; a panel may
// have strips of several. A strip takes the checkpoint's bytes for its rows, no
// more. Its bytes of a format of GGUF, little-endian, block by block of inputs
// (those of ScaledCodes are in scaled_strip.h):
//
//   parameters   [halves][16] numbers of 16 bits, then [bytes][16]
//   codes        for each 8 inputs [16] codes of each column: the lower bits (4
//                bits of two inputs to a byte, or 2 bits of four, or 8 bits of
//                two to a word), then those above (5 and 3 bits: one of each
//                input to a byte; 6 bits: 2 bits of four)

namespace sluice {

// Returns the bytes of a strip of k inputs, a multiple of format.block.
inline size_t StripBytes(const CodeFormat& format, int32_t k) {
  return format.strip_bytes(k);
}

// Makes a strip of `count` rows (1 to 16) of the checkpoint, one after the
// other at `rows`; columns that are not there decode to zeros. Writes
// StripBytes(format, k). kInvalidArgument if a scale or a minimum is NaN,
// infinite or beyond 2^120. Of a format of any order, rows must have these
// `groups` (scaled_strip.h), which the strip does not hold.
absl::Status EncodeStrip(const CodeFormat& format, const std::byte* rows,
                         int32_t count, int32_t k, std::byte* out,
                         const std::byte* groups = nullptr);

// Writes `count` columns (1 to 16) of the panel at `out`, from `column` (a
// multiple of 16) on, k inputs of each, in the panel's order and dtype (float32
// or bfloat16, rounded to nearest, ties to even); padding is left alone. The
// same bits on every instruction set. order.block is a multiple of 16, or
// covers all columns. `groups` is what EncodeStrip got.
void DecodeStrip(const CodeFormat& format, const std::byte* strip, int32_t k,
                 DType dtype, const PanelOrder& order, int32_t column,
                 int32_t count, void* out, const std::byte* groups = nullptr);

// Decodes inputs [begin, end) of all columns, multiples of format.block, to
// floats [inputs][16]: the numbers, or with dtype bfloat16 the nearest
// bfloat16, ties to even. The same bits on every instruction set.
void DecodeSlice(const CodeFormat& format, const std::byte* strip,
                 int32_t begin, int32_t end, DType dtype, float* out);

// The most rows of MultiplyStrip.
inline constexpr int32_t kFewRows = 4;

// Multiplies rows by the numbers that DecodeSlice gives, without storing these:
// adds to sums [rows][16], sums_row apart, one multiply-add after the other, by
// inputs from `begin` on; with bfloat16, of each two the odd one first. `a` is
// [rows][inputs], a_row apart. `rows` is 1 or kFewRows.
void MultiplyStrip(const CodeFormat& format, const std::byte* strip,
                   int32_t begin, int32_t end, DType dtype, const float* a,
                   size_t a_row, int32_t rows, float* sums, size_t sums_row);

// Fills what a panel [n, k] in this order has beside its columns and inputs,
// and maybe some of these, with zeros.
void ClearPadding(int32_t n, int32_t k, DType dtype, const PanelOrder& order,
                  void* out);

}  // namespace sluice
