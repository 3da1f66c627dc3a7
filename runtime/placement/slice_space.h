#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/model/code_format.h"
#include "runtime/placement/matrix_layout.h"

namespace sluice {

// The most inputs of a slice.
inline constexpr int32_t kSliceInputs = kMaxCodeBlock;
// Floats from a strip of a slice to the next: not a multiple of a page, so that
// strips do not crowd each other out of the cache.
inline constexpr int32_t kSliceStrip = kSliceInputs * kStripColumns + 16;
// Rows that share a decoded slice.
inline constexpr int32_t kSliceRows = 256;

// Floats from a row's inputs of a slice to the next row's, likewise.
inline constexpr int32_t kSliceRow = kSliceInputs + 16;

// What a thread works with.
struct SliceSpace {
  alignas(64) float inputs[kSliceRows * kSliceRow];
  alignas(64) float weights[kPanelColumns / kStripColumns * kSliceStrip];
  alignas(64) float sums[kSliceRows * kPanelColumns];   // of a chunk
  alignas(64) float total[kSliceRows * kPanelColumns];  // the result
};

}  // namespace sluice
