#pragma once

#include <cstdint>

#include "common/number_format.h"

// Converts rows of float32 to and from narrower floats, by Highway with the
// processor's vectors. A bfloat16 or float16 is held as uint16_t.

namespace sluice {

void FloatToBf16(const float* x, int32_t n, uint16_t* out);

// Convert any number of elements to and from a dtype: copied, or rounded to
// nearest even.
void ConvertFloats(const float* x, int64_t n, DType dtype, void* out);
void ToFloats(const void* x, int64_t n, DType dtype, float* out);

}  // namespace sluice
