#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace sluice {

// A segment as a backend sees it: rows [row, row + num_tokens) of the packed
// activations are positions [start, start + num_tokens) of one sequence.
struct SegmentView {
  int32_t row = 0;
  int32_t start = 0;
  int32_t num_tokens = 0;
  // Numbers of the pages that hold the sequence's K and V: position p lies in
  // pages[p / kPageTokens].
  std::span<const int32_t> pages;
  // Page number 0 of the layer at hand, in the arena or the staging buffer that
  // holds the sequence: page n lies at kv + n * KvLayout::layer_page_bytes().
  std::byte* kv = nullptr;
};

// A micro-batch: packed rows, no padding.
struct BatchView {
  int32_t rows = 0;
  std::span<const int32_t> tokens;  // [rows]; used by the embedding only
  std::span<const SegmentView> segments;
  // The index of the backend's work space for q, k, v and attention's result
  // (below BackendOptions::attention_slots).
  int32_t attention_slot = 0;
};

}  // namespace sluice
