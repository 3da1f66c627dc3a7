#pragma once

#include <cstdint>

#include "common/number_format.h"

// Rows of float32 to and from narrower floats, by Highway for whatever vectors
// the processor has. A bfloat16 or float16 is held as uint16_t.

namespace sluice {

void FloatToBf16(const float* x, int32_t n, uint16_t* out);

// To and from a dtype, of any number of elements: copied, or rounded to nearest
// even.
void ConvertFloats(const float* x, int64_t n, DType dtype, void* out);
void ToFloats(const void* x, int64_t n, DType dtype, float* out);

}  // namespace sluice
