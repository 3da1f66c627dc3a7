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

// out[i] = act(gate[i] + gate_bias[i]) * (up[i] + up_bias[i]); either bias may
// be null.
void GatedActivation(Activation activation, const float* gate,
                     const float* gate_bias, const float* up,
                     const float* up_bias, int32_t n, DType dtype, void* out);

// out[i] = act(x[i] + bias[i]); bias may be null.
void PlainActivation(Activation activation, const float* x, const float* bias,
                     int32_t n, DType dtype, void* out);

// out[i] += y[i] + bias[i]; bias may be null.
void AddRow(float* out, const float* y, const float* bias, int32_t n);

// out[i] += y[i].
void AddBf16Row(float* out, const uint16_t* y, int32_t n);

// out[i] = y[i] + bias[i]; bias may be null.
void StoreRow(float* out, const float* y, const float* bias, int32_t n);

// Rotary embedding of one head: for i < half, the pair (x[i], x[i + half]) is
// turned by the angle of cos[i], sin[i]; elements from 2 * half to n are copied
// (Su et al. 2021, equation 34, with pairs as Hugging Face lays them out). All
// are then multiplied by `scale`. half may be 0. `out` is not x.
void RotateHead(const float* x, const float* cos, const float* sin,
                int32_t half, int32_t n, float scale, float* out);

void FloatToBf16(const float* x, int32_t n, uint16_t* out);
void Bf16ToFloat(const uint16_t* x, int32_t n, float* out);

// Rounds to nearest even; NaN stays NaN.
inline uint16_t RoundToBf16(float x) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fc0;
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

}  // namespace sluice
