#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

// The blocks of element-wise kernels: a row is a block's x (of which there may
// be 2^31), and y the part of the row that the block takes.

namespace sluice {

// Elements that a thread takes at a time, where rows allow it: 16 bytes of
// floats.
inline constexpr int32_t kWide = 4;

// Returns whether rows of n elements that begin at these addresses (null: none)
// may be read and written kWide floats at a time.
template <typename... Pointers>
bool TakeWide(int32_t n, const Pointers*... rows) {
  return n % kWide == 0 &&
         (... &&
          (reinterpret_cast<uintptr_t>(rows) % (kWide * sizeof(*rows)) == 0));
}

struct RowGrid {
  dim3 grid;
  dim3 block;
};

// Makes the grid for `rows` rows of n elements, `wide` of them to a thread.
inline RowGrid MakeRowGrid(int32_t rows, int32_t n, int32_t wide) {
  constexpr int32_t kMaxThreads = 256;
  const int32_t packs = (n + wide - 1) / wide;
  const int32_t threads = std::min(kMaxThreads, (packs + 31) / 32 * 32);
  if (threads == 0) return {dim3(0), dim3(1)};
  return {dim3(rows, (packs + threads - 1) / threads), dim3(threads)};
}

}  // namespace sluice
