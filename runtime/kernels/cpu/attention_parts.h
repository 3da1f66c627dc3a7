#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/kernels/cpu/attention.h"

// The parts that Attend is made of; see there.

namespace sluice {

// The largest codes of queries and weights, for each format: 16 bits for 8-bit
// codes of K and V, 8 bits for 4-bit ones.
inline constexpr float kInt8Levels = 32767;
inline constexpr float kInt4Levels = 127;

// A head's block (see KvLayout), as numbers.
struct HeadBlock {
  explicit HeadBlock(const KvLayout& layout)
      : head_dim(layout.head_dim),
        groups(layout.groups()),
        k_scales(layout.k_scales_offset()),
        v(layout.v_offset()),
        v_row_bytes(layout.v_row_bytes()),
        v_scales(layout.v_scales_offset()),
        bytes(layout.head_bytes()) {}

  size_t head_dim;
  size_t groups;
  size_t k_scales;
  size_t v;
  size_t v_row_bytes;
  size_t v_scales;
  size_t bytes;
};

// Computes dense attention over formats kInt8 and kInt4.
void AttendQuantized(const AttentionCall& call, AttentionScratch& scratch);

// Computes sparse attention in any format. With `masks`, it only says which
// rows of V it would read, from K alone, and leaves `out`: bit j of masks[p],
// of call.pages.size(), is set if some row keeps position p * kPageTokens + j.
void AttendSparse(const AttentionCall& call, AttentionScratch& scratch,
                  uint32_t* masks);

}  // namespace sluice
