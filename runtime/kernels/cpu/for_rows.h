#pragma once

#include <algorithm>
#include <cstdint>

#include "common/blocks.h"
#include "runtime/memory/compute_pool.h"

namespace sluice {

// Rows that a task of a row-wise operation takes.
inline constexpr int32_t kRowsPerTask = 16;

// Calls fn(row) for each row, several rows to a task of the pool.
template <typename Fn>
void ForRows(ComputePool& pool, int32_t rows, const Fn& fn) {
  pool.ParallelFor(CeilDiv(rows, kRowsPerTask), [&](int task, int) {
    const int32_t end = std::min(rows, (task + 1) * kRowsPerTask);
    for (int32_t row = task * kRowsPerTask; row < end; ++row) fn(row);
  });
}

}  // namespace sluice
