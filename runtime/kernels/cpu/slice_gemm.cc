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

constexpr size_t kLine = 64;

HWY_INLINE void PrefetchToL2(const std::byte* p) {
#if defined(__GNUC__)
  __builtin_prefetch(p, 0, 2);
#endif
}

// Gives the lines of a coming slice, as many at a time as a slice has inputs.
struct AheadPieces {
  const SliceAhead slice;
  size_t block = 0;
  size_t at = 0;  // bytes of the block

  // Null: none is left.
  const std::byte* Take(int32_t inputs) {
    if (block == slice.blocks) return nullptr;
    const std::byte* const piece = slice.first + block * slice.stride + at;
    at += kLine * inputs;
    if (at + kLine * inputs > slice.block_bytes) ++block, at = 0;
    return piece;
  }
};

// The sums of a few rows and strips, of a vector of columns of each, are in
// registers.
template <bool kOddFirst, int kStrips, int... kRow>
HWY_INLINE void MultiplyBlock(std::integer_sequence<int, kRow...>,
                              const float* weights, const float* a,
                              int32_t inputs, bool begin,
                              const std::byte* ahead, float* sums) {
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
    if (ahead != nullptr) PrefetchToL2(ahead + size_t{kLine} * i);
    VF w[kStrips];
#pragma GCC unroll 8
    for (int s = 0; s < kStrips; ++s) {
      w[s] = hn::LoadU(d, weights + s * kSliceStrip + i * kStripColumns);
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const VF x = hn::Set(d, a[r * kSliceRow + i]);
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
                                 int32_t inputs, bool begin,
                                 const std::byte* ahead, float* sums) {
  for (size_t c = 0; c < kStripColumns; c += hn::Lanes(DF())) {
    MultiplyBlock<kOddFirst, kStrips>(std::make_integer_sequence<int, kRows>(),
                                      weights + c, a, inputs, begin, ahead,
                                      sums + c);
  }
}

// Of kStrips strips, all rows: blocks of nearly as many.
template <bool kOddFirst, int kStrips>
void MultiplyRows(const float* weights, const float* a, int32_t rows,
                  int32_t inputs, bool begin, AheadPieces* ahead, float* sums) {
  constexpr int32_t kMost = 6;
  const int32_t blocks = (rows + kMost - 1) / kMost;
  for (int32_t block = 0; block < blocks; ++block) {
    const int32_t row = block * rows / blocks;
    const float* const from = a + row * kSliceRow;
    float* const to = sums + static_cast<size_t>(row) * kPanelColumns;
    const auto multiply = [&](auto count) {
      MultiplyStrips<kOddFirst, decltype(count)::value, kStrips>(
          weights, from, inputs, begin, ahead->Take(inputs), to);
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
                 int32_t rows, int32_t inputs, bool begin,
                 const SliceAhead& slice_ahead, float* sums) {
  AheadPieces ahead = {slice_ahead};
  int32_t s = 0;
  const auto multiply = [&](auto count) {
    MultiplyRows<kOddFirst, decltype(count)::value>(
        weights + s * kSliceStrip, a, rows, inputs, begin, &ahead,
        sums + s * kStripColumns);
    s += decltype(count)::value;
  };
  while (strips - s >= 4) multiply(std::integral_constant<int, 4>());
  while (s < strips) multiply(std::integral_constant<int, 1>());
}

void MultiplySliceImpl(const float* weights, int32_t strips, const float* a,
                       int32_t rows, int32_t inputs, bool odd_first, bool begin,
                       const SliceAhead& ahead, float* sums) {
  if (odd_first) {
    MultiplyAll<true>(weights, strips, a, rows, inputs, begin, ahead, sums);
  } else {
    MultiplyAll<false>(weights, strips, a, rows, inputs, begin, ahead, sums);
  }
}

void WidenRowsImpl(const void* a, DType dtype, int32_t k, int32_t rows,
                   int32_t begin, int32_t end, float* out) {
  const DF d;
  const hn::Rebind<hwy::bfloat16_t, DF> db;
  const auto lanes = static_cast<int32_t>(hn::Lanes(d));
  const int32_t count = end - begin;
  for (int32_t row = 0; row < rows; ++row, out += kSliceRow) {
    const size_t first = static_cast<size_t>(row) * k + begin;
    if (dtype == DType::kFloat32) {
      std::memcpy(out, static_cast<const float*>(a) + first,
                  count * sizeof(float));
      continue;
    }
    const auto* from = static_cast<const hwy::bfloat16_t*>(a) + first;
    int32_t i = 0;
    for (; i + lanes <= count; i += lanes) {
      hn::StoreU(hn::PromoteTo(d, hn::LoadU(db, from + i)), d, out + i);
    }
    for (; i < count; ++i) out[i] = hwy::F32FromBF16(from[i]);
  }
}

void WidenSliceImpl(const std::byte* panel, const PanelOrder& order,
                    int32_t first_strip, int32_t strips, int32_t begin,
                    int32_t end, float* out) {
  const DF d;
  const hn::Rebind<uint32_t, DF> du;
  const hn::Rebind<hwy::bfloat16_t, DF> db;
  const auto lanes = static_cast<int32_t>(hn::Lanes(d));
  const auto* const numbers = reinterpret_cast<const uint16_t*>(panel);
  // From front to back in memory, a block of columns after the other.
  const int32_t last = first_strip + strips;
  for (int32_t strip = first_strip; strip < last;) {
    const int32_t of_block = order.block / kStripColumns;
    const int32_t end_strip = HWY_MIN(last, (strip / of_block + 1) * of_block);
    for (int32_t i = begin; i < end; i += order.interleave) {
      float* to = out + (strip - first_strip) * kSliceStrip +
                  (i - begin) * kStripColumns;
      const uint16_t* from = numbers + order.Position(strip * kStripColumns, i);
      for (int32_t s = strip; s < end_strip; ++s, to += kSliceStrip) {
        for (int32_t c = 0; c < kStripColumns; c += lanes) {
          if (order.interleave == 1) {
            const auto* const p =
                reinterpret_cast<const hwy::bfloat16_t*>(from);
            hn::StoreU(hn::PromoteTo(d, hn::LoadU(db, p)), d, to + c);
            from += lanes;
            continue;
          }
          const auto pair =
              hn::LoadU(du, reinterpret_cast<const uint32_t*>(from));
          hn::StoreU(hn::BitCast(d, hn::ShiftLeft<16>(pair)), d, to + c);
          hn::StoreU(hn::BitCast(d, hn::And(pair, hn::Set(du, 0xffff0000u))), d,
                     to + kStripColumns + c);
          from += 2 * lanes;
        }
      }
    }
    strip = end_strip;
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
HWY_EXPORT(WidenSliceImpl);
HWY_EXPORT(AddSumsImpl);

void MultiplySlice(const float* weights, int32_t strips, const float* a,
                   int32_t rows, int32_t inputs, bool odd_first, bool begin,
                   const SliceAhead& ahead, float* sums) {
  HWY_DYNAMIC_DISPATCH(MultiplySliceImpl)
  (weights, strips, a, rows, inputs, odd_first, begin, ahead, sums);
}

void WidenRows(const void* a, DType dtype, int32_t k, int32_t rows,
               int32_t begin, int32_t end, float* out) {
  HWY_DYNAMIC_DISPATCH(WidenRowsImpl)(a, dtype, k, rows, begin, end, out);
}

void WidenSlice(const std::byte* panel, const PanelOrder& order,
                int32_t first_strip, int32_t strips, int32_t begin, int32_t end,
                float* out) {
  HWY_DYNAMIC_DISPATCH(WidenSliceImpl)
  (panel, order, first_strip, strips, begin, end, out);
}

void AddSums(const float* sums, size_t count, float* total) {
  HWY_DYNAMIC_DISPATCH(AddSumsImpl)(sums, count, total);
}

}  // namespace sluice
#endif
