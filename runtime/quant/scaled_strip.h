#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "common/types.h"
#include "runtime/model/code_format.h"
#include "runtime/quant/panel_codec.h"

// Strips (strip_codec.h) of the formats of ScaledCodes. Group by group of
// inputs, little-endian:
//
//   scales   [16] of ScaledCodes::stored(), or one for all 16 columns
//   zeros    [16] signed bytes, or [8] bytes of two columns each, the first in
//            the lower bits, counted from 8; none of a format without them
//   codes    for each 2 inputs [16] of each column: words of both inputs' 8
//            bits, or bytes of both inputs' 4 bits
//
// In any order, scales and zeros of all groups come first, then all codes. A
// byte for the group of each input lies elsewhere, once for all strips of a
// panel: it would be an eighth of a strip of 4 bits. Of columns that are not
// there, all numbers are 0.

namespace sluice {

// Returns the groups of a row's inputs, [k]; null if their order is not any.
inline const std::byte* GroupsOfRow(const CodeFormat& format,
                                    const std::byte* row, int32_t k) {
  return format.scaled != nullptr && format.scaled->any_order
             ? row + (format.row_bytes(k) - k)
             : nullptr;
}

// EncodeStrip of a format that is scaled. kInvalidArgument, too, if a code is
// no number.
absl::Status EncodeScaledStrip(const CodeFormat& format, const std::byte* rows,
                               int32_t count, int32_t k,
                               const std::byte* groups, std::byte* out);

// DecodeStrip of a format that is scaled: each weight is the very product that
// reading the checkpoint as numbers gives.
void DecodeScaledStrip(const CodeFormat& format, const std::byte* strip,
                       const std::byte* groups, int32_t k, DType dtype,
                       const PanelOrder& order, int32_t column, int32_t count,
                       void* out);

}  // namespace sluice
