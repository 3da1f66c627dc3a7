#pragma once

#include <cstdint>

#include "common/types.h"

// What a mixture's rows need beside GEMMs, by Highway. What is computed for a
// row depends on that row alone.

namespace sluice {

// out[row][e] = x[row] . weights[e] [+ bias[e]], in float32: x is [rows, n] in
// `dtype` (float32 or bfloat16), weights [outputs, n], bias [outputs] or null.
void RouterLogits(DType dtype, const void* x, int32_t rows, int64_t n,
                  const float* weights, const float* bias, int32_t outputs,
                  float* out);

// out[i] += weight * (x[i] [+ bias[i]]); bias may be null.
void AddWeightedRow(float weight, const float* x, const float* bias, int32_t n,
                    float* out);

}  // namespace sluice
