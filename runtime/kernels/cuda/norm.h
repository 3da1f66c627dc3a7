#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "absl/status/status.h"

// Norms of rows of the residual stream on the device, for T float, __half and
// __nv_bfloat16.

namespace sluice {

struct NormRowsArgs {
  const float* x = nullptr;  // [.., n]
  // [rows], which rows of x to take; null for the first ones in their order.
  const int32_t* rows_of_x = nullptr;
  int32_t rows = 0;
  int32_t n = 0;
  const float* weight = nullptr;  // [n], or null
  const float* bias = nullptr;    // [n], or null
  float eps = 0;
};

// out[row, i] = x[i] * weight[i] / sqrt(mean(x^2) + eps); bias is not used.
// `out`, [rows, n], may be x where rows_of_x is null. Sums are taken in an
// order that depends on n alone.
template <typename T>
absl::Status RmsNormRows(const NormRowsArgs& args, T* out, cudaStream_t stream);

// out[row, i] = (x[i] - mean(x)) / sqrt(var(x) + eps) * weight[i] + bias[i].
template <typename T>
absl::Status LayerNormRows(const NormRowsArgs& args, T* out,
                           cudaStream_t stream);

// out[row, i] = x[i].
template <typename T>
absl::Status ConvertRows(const NormRowsArgs& args, T* out, cudaStream_t stream);

}  // namespace sluice
