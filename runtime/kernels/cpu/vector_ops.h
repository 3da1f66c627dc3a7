#pragma once

#include <cstdint>

#include "common/types.h"
#include "runtime/model/decoder_spec.h"

// Row-wise operations, by Highway for whatever vectors the processor has. What
// they compute for a row depends on that row alone. Outputs of type `void*` are
// float32 or bfloat16 (as uint16_t, rounded to nearest even), as `dtype` says.

namespace sluice {

// out[i] = x[i] * weight[i] / sqrt(mean(x^2) + eps) (Zhang and Sennrich 2019,
// equation 4). `out` may be x.
void RmsNorm(const float* x, const float* weight, int32_t n, float eps,
             DType dtype, void* out);

// out[i] = (x[i] - mean(x)) / sqrt(var(x) + eps) [* weight[i]] [+ bias[i]];
// weight and bias may be null. `out` may be x.
void LayerNorm(const float* x, const float* weight, const float* bias,
               int32_t n, float eps, DType dtype, void* out);

// The next five functions take a finished tile of a GEMM, [rows, cols] without
// gaps, to rows of `stride` elements. `bias`, [cols], may be null.
//
// out = act(gate + bias) * (up + bias), where gate is the tile's left half and
// up its right.
void GatedTile(Activation activation, const float* tile, int32_t rows,
               int32_t cols, const float* bias, DType dtype, void* out,
               int64_t stride);
// As GatedTile with SiLU, but for g = gate + bias and u = up + bias
//
//   out = g * sigmoid(slope * g) * (u + up_offset)
//
// where g is at most `limit`, and u within it on both sides (gpt-oss,
// transformers' GptOssExperts). A limit of 0 is none.
struct ClampedGate {
  float limit = 0;
  float slope = 1;
  float up_offset = 0;
};
void ClampedTile(const ClampedGate& gate, const float* tile, int32_t rows,
                 int32_t cols, const float* bias, DType dtype, void* out,
                 int64_t stride);
// out = act(tile + bias).
void PlainTile(Activation activation, const float* tile, int32_t rows,
               int32_t cols, const float* bias, DType dtype, void* out,
               int64_t stride);
// out += tile + bias.
void AddTile(const float* tile, int32_t rows, int32_t cols, const float* bias,
             float* out, int64_t stride);
// out = tile + bias.
void StoreTile(const float* tile, int32_t rows, int32_t cols, const float* bias,
               float* out, int64_t stride);

// Returns the sum of x[i]^2, in an order that depends on n alone.
float SumOfSquares(const float* x, int32_t n);
// out[i] = x[i] * weight[i] * factor. `out` may be x.
void ScaleRow(const float* x, const float* weight, int32_t n, float factor,
              float* out);
// x[i] = cap * tanh(x[i] / cap).
void CapRow(float cap, int32_t n, float* x);

// out[i] += y[i].
void AddRow(float* out, const float* y, int32_t n);
void AddBf16Row(float* out, const uint16_t* y, int32_t n);
// out[i] += y[i], where y is in a dtype.
void AddRowOf(DType dtype, const void* y, int32_t n, float* out);

// Rotary embedding of one head: for i < half, the pair (x[i], x[i + half]) is
// turned by the angle of cos[i], sin[i]; elements from 2 * half to n are copied
// (Su et al. 2021, equation 34, with pairs as Hugging Face lays them out). All
// are then multiplied by `scale`. half may be 0. `out` is not x.
void RotateHead(const float* x, const float* cos, const float* sin,
                int32_t half, int32_t n, float scale, float* out);

}  // namespace sluice
