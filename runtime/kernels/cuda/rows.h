#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "absl/status/status.h"
#include "runtime/model/decoder_spec.h"

// The device's row by row operations, for T float, __half and __nv_bfloat16:
// norms of the residual stream, what follows a GEMM, and lookups in tables.

namespace sluice {

struct NormRowsArgs {
  const float* x = nullptr;  // [.., n]
  // The rows of x to take, [rows]; null for the first ones in their order.
  const int32_t* rows_of_x = nullptr;
  int32_t rows = 0;
  int32_t n = 0;
  const float* weight = nullptr;  // [n], or null
  const float* bias = nullptr;    // [n], or null
  float eps = 0;
  // Instead of whole rows: `heads` neighbouring parts of n elements each of
  // every row of `stride` elements. `rows` counts parts; rows_of_x is null.
  int32_t heads = 0;
  int64_t stride = 0;
  // Each head has a weight of its own: [heads, n].
  bool own_weights = false;
};

// out[row, i] = x[i] * weight[i] / sqrt(mean(x^2) + eps); bias is not used.
// `out`, [rows, n], or as x with `heads`, may be x where rows_of_x is null.
// Sums are taken in an order that depends on n alone.
template <typename T>
absl::Status RmsNormRows(const NormRowsArgs& args, T* out, cudaStream_t stream);

// out[row, i] = (x[i] - mean(x)) / sqrt(var(x) + eps) * weight[i] + bias[i].
template <typename T>
absl::Status LayerNormRows(const NormRowsArgs& args, T* out,
                           cudaStream_t stream);

// out[row, i] = x[i].
template <typename T>
absl::Status ConvertRows(const NormRowsArgs& args, T* out, cudaStream_t stream);

// RMSNorm of all of a row's heads together, of which this has some: each head's
// squares are summed by itself, and these sums in the order of the heads.
struct HeadNormArgs {
  float* x = nullptr;  // head h of row r lies at x + r * stride + h * head_dim
  int64_t stride = 0;
  int32_t rows = 0;
  int32_t heads = 0;
  int32_t head_dim = 0;
  const float* weight = nullptr;  // [heads * head_dim]
  float eps = 0;
  // Sums of squares, [rows, all_heads], of which these heads' begin at column
  // first_head.
  float* squares = nullptr;
  int32_t all_heads = 0;
  int32_t first_head = 0;
};
// Writes these heads' sums.
absl::Status SumHeadSquares(const HeadNormArgs& args, cudaStream_t stream);
// Norms x in place. REQUIRES: all heads' sums are there.
absl::Status NormHeadsBySquares(const HeadNormArgs& args, cudaStream_t stream);

// x[row, i] = cap * tanh(x[row, i] / cap), i < n; rows lie `stride` elements
// apart.
absl::Status CapRows(float cap, int32_t rows, int32_t n, int64_t stride,
                     float* x, cudaStream_t stream);

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

// out[row, i] = table[numbers[row], i], i < n. Numbers must be rows of the
// table. Out is float or T.
template <typename T, typename Out>
absl::Status GatherRows(const T* table, const int32_t* numbers, int32_t rows,
                        int32_t n, Out* out, cudaStream_t stream);

// x[row, i] += table[numbers[row] + offset, i]: learned positions.
template <typename T>
absl::Status AddGatheredRows(const T* table, const int32_t* numbers,
                             int32_t offset, int32_t rows, int32_t n, float* x,
                             cudaStream_t stream);

}  // namespace sluice
