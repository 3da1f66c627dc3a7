#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "absl/status/status.h"

// Rows of tables by number, on the device, for tables of T float, __half and
// __nv_bfloat16. Numbers must be rows of the table.

namespace sluice {

// out[row, i] = table[numbers[row], i], i < n. Out is float or T.
template <typename T, typename Out>
absl::Status GatherRows(const T* table, const int32_t* numbers, int32_t rows,
                        int32_t n, Out* out, cudaStream_t stream);

// x[row, i] += table[numbers[row] + offset, i]: learned positions.
template <typename T>
absl::Status AddGatheredRows(const T* table, const int32_t* numbers,
                             int32_t offset, int32_t rows, int32_t n, float* x,
                             cudaStream_t stream);

}  // namespace sluice
