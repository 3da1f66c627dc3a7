#include "runtime/kernels/cpu/slice_gemm.h"

#include <algorithm>
#include <cstring>
#include <utility>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/kernels/cpu/slice_gemm.cc"
#include "hwy/foreach_target.h"
// Highway's header must follow foreach_target.h:
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace sluice {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::CappedTag<float, kStripColumns>;
using VF = hn::Vec<DF>;

// The sums of a few rows and strips, of a vector of columns of each, are in
// registers.
template <bool kOddFirst, int kStrips, int... kRow>
HWY_INLINE void MultiplyBlock(std::integer_sequence<int, kRow...>,
                              const float* weights, const float* a,
                              size_t a_row, int32_t inputs, bool begin,
                              float* sums) {
  const DF d;
  constexpr int kRows = sizeof...(kRow);
  const auto at = [&](int row, int strip) {
    return sums + row * kPanelColumns + strip * kStripColumns;
  };
  VF sum[kRows][kStrips];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int s = 0; s < kStrips; ++s) {
      sum[r][s] = begin ? hn::Zero(d) : hn::LoadU(d, at(r, s));
    }
  }
  const auto add = [&](int32_t i) HWY_ATTR {
    VF w[kStrips];
#pragma GCC unroll 8
    for (int s = 0; s < kStrips; ++s) {
      w[s] = hn::LoadU(d, weights + s * kSliceStrip + i * kStripColumns);
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const VF x = hn::Set(d, a[r * a_row + i]);
#pragma GCC unroll 8
      for (int s = 0; s < kStrips; ++s) {
        sum[r][s] = hn::MulAdd(x, w[s], sum[r][s]);
      }
    }
  };
  if constexpr (kOddFirst) {
    for (int32_t i = 0; i < inputs; i += 2) {
      add(i + 1);
      add(i);
    }
  } else {
    for (int32_t i = 0; i < inputs; ++i) add(i);
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int s = 0; s < kStrips; ++s) hn::StoreU(sum[r][s], d, at(r, s));
  }
}

template <bool kOddFirst, int kRows, int kStrips>
HWY_NOINLINE void MultiplyStrips(const float* weights, const float* a,
                                 size_t a_row, int32_t inputs, bool begin,
                                 float* sums) {
  for (size_t c = 0; c < kStripColumns; c += hn::Lanes(DF())) {
    MultiplyBlock<kOddFirst, kStrips>(std::make_integer_sequence<int, kRows>(),
                                      weights + c, a, a_row, inputs, begin,
                                      sums + c);
  }
}

// Of kStrips strips, all rows: blocks of nearly as many.
template <bool kOddFirst, int kStrips>
void MultiplyRows(const float* weights, const float* a, size_t a_row,
                  int32_t rows, int32_t inputs, bool begin, float* sums) {
  constexpr int32_t kMost = 6;
  const int32_t blocks = (rows + kMost - 1) / kMost;
  for (int32_t block = 0; block < blocks; ++block) {
    const int32_t row = block * rows / blocks;
    const float* const from = a + row * a_row;
    float* const to = sums + static_cast<size_t>(row) * kPanelColumns;
    const auto multiply = [&](auto count) {
      MultiplyStrips<kOddFirst, decltype(count)::value, kStrips>(
          weights, from, a_row, inputs, begin, to);
    };
    switch ((block + 1) * rows / blocks - row) {
      case 1:
        multiply(std::integral_constant<int, 1>());
        break;
      case 2:
        multiply(std::integral_constant<int, 2>());
        break;
      case 3:
        multiply(std::integral_constant<int, 3>());
        break;
      case 4:
        multiply(std::integral_constant<int, 4>());
        break;
      case 5:
        multiply(std::integral_constant<int, 5>());
        break;
      default:
        multiply(std::integral_constant<int, 6>());
    }
  }
}

template <bool kOddFirst>
void MultiplyAll(const float* weights, int32_t strips, const float* a,
                 size_t a_row, int32_t rows, int32_t inputs, bool begin,
                 float* sums) {
  int32_t s = 0;
  const auto multiply = [&](auto count) {
    MultiplyRows<kOddFirst, decltype(count)::value>(
        weights + s * kSliceStrip, a, a_row, rows, inputs, begin,
        sums + s * kStripColumns);
    s += decltype(count)::value;
  };
  while (strips - s >= 4) multiply(std::integral_constant<int, 4>());
  while (s < strips) multiply(std::integral_constant<int, 1>());
}

void MultiplySliceImpl(const float* weights, int32_t strips, const float* a,
                       size_t a_row, int32_t rows, int32_t inputs,
                       bool odd_first, bool begin, float* sums) {
  if (odd_first) {
    MultiplyAll<true>(weights, strips, a, a_row, rows, inputs, begin, sums);
  } else {
    MultiplyAll<false>(weights, strips, a, a_row, rows, inputs, begin, sums);
  }
}

void WidenRowsImpl(const void* a, DType dtype, int32_t k, int32_t rows,
                   size_t out_row, float* out) {
  const DF d;
  const hn::Rebind<hwy::bfloat16_t, DF> db;
  const auto lanes = static_cast<int32_t>(hn::Lanes(d));
  for (int32_t row = 0; row < rows; ++row, out += out_row) {
    const size_t first = static_cast<size_t>(row) * k;
    if (dtype == DType::kFloat32) {
      std::memcpy(out, static_cast<const float*>(a) + first, k * sizeof(float));
      continue;
    }
    const auto* from = static_cast<const hwy::bfloat16_t*>(a) + first;
    int32_t i = 0;
    for (; i + lanes <= k; i += lanes) {
      hn::StoreU(hn::PromoteTo(d, hn::LoadU(db, from + i)), d, out + i);
    }
    for (; i < k; ++i) out[i] = hwy::F32FromBF16(from[i]);
  }
}

void AddSumsImpl(const float* sums, size_t count, float* total) {
  const DF d;
  for (size_t i = 0; i < count; i += hn::Lanes(d)) {
    hn::StoreU(hn::Add(hn::LoadU(d, total + i), hn::LoadU(d, sums + i)), d,
               total + i);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace sluice
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice {

#if defined(__x86_64__)
SmallAreZeros::SmallAreZeros(bool wanted) : before_(_mm_getcsr()) {
  constexpr unsigned kInputsAndResults = 0x8040;
  if (wanted) _mm_setcsr(before_ | kInputsAndResults);
}
SmallAreZeros::~SmallAreZeros() { _mm_setcsr(before_); }
#else
SmallAreZeros::SmallAreZeros(bool) : before_(0) {}
SmallAreZeros::~SmallAreZeros() = default;
#endif

HWY_EXPORT(MultiplySliceImpl);
HWY_EXPORT(WidenRowsImpl);
HWY_EXPORT(AddSumsImpl);

void MultiplySlice(const float* weights, int32_t strips, const float* a,
                   size_t a_row, int32_t rows, int32_t inputs, bool odd_first,
                   bool begin, float* sums) {
  HWY_DYNAMIC_DISPATCH(MultiplySliceImpl)
  (weights, strips, a, a_row, rows, inputs, odd_first, begin, sums);
}

void WidenRows(const void* a, DType dtype, int32_t k, int32_t rows,
               size_t out_row, float* out) {
  HWY_DYNAMIC_DISPATCH(WidenRowsImpl)(a, dtype, k, rows, out_row, out);
}

void AddSums(const float* sums, size_t count, float* total) {
  HWY_DYNAMIC_DISPATCH(AddSumsImpl)(sums, count, total);
}

}  // namespace sluice
#endif
