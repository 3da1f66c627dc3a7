#pragma once

#include <cstddef>
#include <cstdint>

#include "common/types.h"
#include "runtime/placement/slice_space.h"

// Products with weights that were just decoded. A panel's weights become floats
// a slice of inputs at a time, which the cache holds, and all rows are
// multiplied with a slice before the next one is decoded.
//
// Each sum is that of oneDNN's kernels, bit for bit: multiply-adds in the order
// of SumOrder. Processors with AVX-512 but without AMX do twice as many of them
// with floats as with bfloat16.

namespace sluice {

// The order in which a product over k inputs is summed: a chunk of inputs from
// 0 on, one multiply-add after the other, then the chunks' sums.
struct SumOrder {
  // A multiple of kSliceInputs, or all inputs; 0: unknown.
  int32_t chunk = 0;
  bool odd_first = false;  // input 1 before 0, 3 before 2, and so on
};

// Within, numbers too small for the exponent are zeros, as they are for the
// processor's instruction for bfloat16.
class SmallAreZeros {
 public:
  explicit SmallAreZeros(bool wanted);
  ~SmallAreZeros();

 private:
  const unsigned before_;
};

// Makes floats of rows [rows, k] in `dtype` (float32 or bfloat16), out_row
// apart.
void WidenRows(const void* a, DType dtype, int32_t k, int32_t rows,
               size_t out_row, float* out);

// Multiplies `rows` rows of inputs (a_row apart) by `strips` strips of weights
// ([inputs][16], kSliceStrip apart): adds to sums [rows][kPanelColumns], or
// begins them. With `odd_first`, `inputs` is even.
void MultiplySlice(const float* weights, int32_t strips, const float* a,
                   size_t a_row, int32_t rows, int32_t inputs, bool odd_first,
                   bool begin, float* sums);

// Adds `count` floats, a multiple of 16.
void AddSums(const float* sums, size_t count, float* total);

}  // namespace sluice
