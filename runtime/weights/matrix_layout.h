#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "common/types.h"

namespace sluice {

// Columns in a panel. A panel of k x 128 in the CPU's cache, beside a tile of
// 128 x k, is as large as it may be for the usual k; and no layout depends on
// the number of threads.
inline constexpr int32_t kPanelColumns = 128;
// Alignment of panels within an image. An ImageView's addresses must have it
// too.
inline constexpr size_t kPanelAlignment = 64;

inline size_t ElementBytes(DType dtype) {
  return dtype == DType::kFloat32 ? 4 : 2;
}

// How a matrix [n, k] lies in an image: panels of output columns, one after
// the other, each beginning at a multiple of kPanelAlignment. All panels but
// the last are equally wide. Made by MatrixPacker::Layout; plain data.
struct MatrixLayout {
  int32_t n = 0;
  int32_t k = 0;
  WeightFormat format = WeightFormat::kFull;
  size_t offset = 0;  // of panel 0 in the image
  size_t bytes = 0;   // of all panels, a multiple of kPanelAlignment
  int32_t panel_width = 0;
  size_t whole_panel_bytes = 0;  // of a panel of panel_width columns
  size_t last_panel_bytes = 0;
  // Tells orders of packing apart, as far as they depend on n and k: part of
  // what identifies an image (PackedWeights::ImageKey).
  uint64_t packing = 0;

  int32_t num_panels() const {
    return panel_width == 0 ? 0 : (n + panel_width - 1) / panel_width;
  }
  // Columns [panel_begin, panel_end) of the product, rows of the weight.
  int32_t panel_begin(int panel) const { return panel * panel_width; }
  int32_t panel_end(int panel) const {
    return std::min(n, (panel + 1) * panel_width);
  }
  // Absolute in the image.
  size_t panel_offset(int panel) const {
    return offset + static_cast<size_t>(panel) * whole_panel_bytes;
  }
  size_t panel_bytes(int panel) const {
    return panel + 1 == num_panels() ? last_panel_bytes : whole_panel_bytes;
  }
};

}  // namespace sluice
