#pragma once

#include <cstdint>
#include <span>

namespace sluice {

// A segment as a backend sees it: rows [row, row + num_tokens) of the packed
// activations are positions [start, start + num_tokens) of one sequence, whose
// K and V lie in `pages`.
struct SegmentView {
  int32_t row = 0;
  int32_t start = 0;
  int32_t num_tokens = 0;
  std::span<const int32_t> pages;
};

// A micro-batch: packed rows, no padding.
struct BatchView {
  int32_t rows = 0;
  std::span<const int32_t> tokens;  // [rows]; used by the embedding only
  std::span<const SegmentView> segments;
};

}  // namespace sluice
