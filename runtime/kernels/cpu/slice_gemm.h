#pragma once

#include <cstddef>
#include <cstdint>

#include "common/types.h"
#include "runtime/placement/slice_space.h"
#include "runtime/quant/panel_codec.h"

// Products with weights that were just decoded, or widened. A panel's weights
// become floats a slice of inputs at a time, which the cache holds, and all
// rows are multiplied with a slice before the next one is decoded.
//
// Each sum is that of oneDNN's kernels, bit for bit: multiply-adds in the order
// of SumOrder. Some processors with AVX-512 but without AMX do twice as many of
// them with floats as with bfloat16.

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

// Makes floats [rows][kSliceRow] of inputs [begin, end) of rows [rows, k] in
// `dtype` (float32 or bfloat16).
void WidenRows(const void* a, DType dtype, int32_t k, int32_t rows,
               int32_t begin, int32_t end, float* out);

// Makes strips of weights ([inputs][16], kSliceStrip apart), from `first_strip`
// of a panel of bfloat16 in oneDNN's order on, of inputs [begin, end). `begin`
// and `end` are even.
void WidenSlice(const std::byte* panel, const PanelOrder& order,
                int32_t first_strip, int32_t strips, int32_t begin, int32_t end,
                float* out);

// Memory that is wanted soon: blocks of bytes, `stride` apart.
struct SliceAhead {
  const std::byte* first = nullptr;
  size_t blocks = 0;
  size_t block_bytes = 0;
  size_t stride = 0;
};

// Multiplies `rows` rows of inputs ([rows][kSliceRow]) by `strips` strips of
// weights ([inputs][16], kSliceStrip apart): adds to sums
// [rows][kPanelColumns], or begins them. With `odd_first`, `inputs` is even.
void MultiplySlice(const float* weights, int32_t strips, const float* a,
                   int32_t rows, int32_t inputs, bool odd_first, bool begin,
                   const SliceAhead& ahead, float* sums);

// Adds `count` floats, a multiple of 16.
void AddSums(const float* sums, size_t count, float* total);

}  // namespace sluice
