#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "absl/status/status.h"
#include "runtime/model/decoder_spec.h"

// What follows a product, on the device, for rows of T float, __half and
// __nv_bfloat16.

namespace sluice {

// out[row, i] = act(in[row, i] + bias[i]) * (in[row, n + i] + bias[n + i]):
// rows of `in` are n gate columns, then n up columns. `bias`, [2 n], may be
// null. In is float or T.
template <typename In, typename T>
absl::Status GateRows(Activation activation, const In* in, const float* bias,
                      int32_t rows, int32_t n, T* out, cudaStream_t stream);

// out[row, i] = act(in[row, i] + bias[i]); `bias`, [n], may be null. `out` may
// be `in`.
template <typename In, typename T>
absl::Status ActivateRows(Activation activation, const In* in,
                          const float* bias, int32_t rows, int32_t n, T* out,
                          cudaStream_t stream);

// x[row, i] += y[row, i] + bias[i]; `y`, [rows, n], or `bias`, [n], may be
// null.
template <typename T>
absl::Status AddRows(const T* y, const float* bias, int32_t rows, int32_t n,
                     float* x, cudaStream_t stream);

}  // namespace sluice
