// Columns of a panel that decoding makes, for the Highway files, compiled once
// per target. It has no usual include guard: see Highway's foreach_target.h.

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "hwy/highway.h"
#include "runtime/quant/panel_codec.h"

#if defined(SLUICE_COLUMNS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SLUICE_COLUMNS_INL_H_
#undef SLUICE_COLUMNS_INL_H_
#else
#define SLUICE_COLUMNS_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace sluice {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::CappedTag<float, 16>;
using DU = hn::Rebind<uint32_t, DF>;
using DI = hn::Rebind<int32_t, DF>;
using DU16 = hn::Rebind<uint16_t, DF>;
using DU8 = hn::Rebind<uint8_t, DF>;
using DF16 = hn::Rebind<hwy::float16_t, DF>;
using VF = hn::Vec<DF>;
using VU = hn::Vec<DU>;
constexpr size_t kLanes = 16;  // the maximum

// With 16 lanes a vector holds a value for each code of 4 bits, and one lookup
// decodes it.
#if HWY_HAVE_SCALABLE
constexpr bool kLookUp = false;
#else
constexpr bool kLookUp = hn::MaxLanes(DF()) == 16;
#endif

// Rounds to the nearest bfloat16, ties to even: its bits are in the upper half,
// the lower is undefined. REQUIRES: no NaN.
HWY_INLINE VU RoundBf16(VF v) {
  const DU du;
  const VU bits = hn::BitCast(du, v);
  const VU odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
  return hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7fff)));
}

// Rounds to the nearest bfloat16, ties to even, in fewer steps: adds and takes
// away 1.5 times the power of two whose last bit is that of the bfloat16.
// REQUIRES: of magnitude 2^-126 to 2^110, or 0, and denormals count as zeros.
HWY_INLINE VF RoundedToBf16(VF v) {
  const DF d;
  const DU du;
  const VF half =
      hn::BitCast(d, hn::OrAnd(hn::Set(du, 0x00400000), hn::BitCast(du, v),
                               hn::Set(du, 0x7f800000)));
  const VF up = hn::Set(d, 65536.0f);
  return hn::NegMulAdd(half, up, hn::MulAdd(half, up, v));
}

// The form of a pair of inputs (even, odd) in memory: two rows of floats, of
// floats that are bfloat16, or of bfloat16, or one row of interleaved bfloat16.
enum class Form { kFloat, kRounded, kBf16, kBf16Pairs };
template <Form kForm>
constexpr bool kIsFloats = kForm == Form::kFloat || kForm == Form::kRounded;

// A vector of columns for both inputs of a pair, ready to be stored.
template <Form kForm>
struct Decoded {
  hn::Vec<std::conditional_t<kIsFloats<kForm>, DF, DU>> even, odd;
};

template <Form kForm>
HWY_INLINE Decoded<kForm> Convert(VF even, VF odd) {
  if constexpr (kForm == Form::kFloat) {
    return {even, odd};
  } else if constexpr (kForm == Form::kRounded) {
    return {RoundedToBf16(even), RoundedToBf16(odd)};
  } else if constexpr (kForm == Form::kBf16) {
    return {hn::ShiftRight<16>(RoundBf16(even)),
            hn::ShiftRight<16>(RoundBf16(odd))};
  } else {
    // The halves have disjoint bits, to be combined by Or.
    return {hn::ShiftRight<16>(RoundBf16(even)),
            hn::And(RoundBf16(odd), hn::Set(DU(), 0xffff0000u))};
  }
}

// Stores columns: the even input's row begins at `even`, the odd one's at `odd`
// (null if there is no such row).
template <Form kForm, typename T>
HWY_INLINE void StoreColumns(const Decoded<kForm>& v, T* even, T* odd) {
  if constexpr (kIsFloats<kForm>) {
    hn::StoreU(v.even, DF(), even);
    if (odd != nullptr) hn::StoreU(v.odd, DF(), odd);
  } else if constexpr (kForm == Form::kBf16) {
    const DI di;
    hn::StoreU(hn::DemoteTo(DU16(), hn::BitCast(di, v.even)), DU16(), even);
    if (odd != nullptr) {
      hn::StoreU(hn::DemoteTo(DU16(), hn::BitCast(di, v.odd)), DU16(), odd);
    }
  } else {
    hn::StoreU(hn::Or(v.even, v.odd), DU(), reinterpret_cast<uint32_t*>(even));
  }
}

// Stores fewer columns than a vector has lanes.
template <Form kForm, typename T>
HWY_INLINE void StoreSome(const Decoded<kForm>& v, size_t count, T* even,
                          T* odd) {
  constexpr size_t kPer = kForm == Form::kBf16Pairs ? 2 : 1;
  HWY_ALIGN T e[kLanes * kPer];
  HWY_ALIGN T o[kLanes * kPer];
  StoreColumns<kForm>(v, e, o);
  std::memcpy(even, e, count * kPer * sizeof(T));
  if (kForm != Form::kBf16Pairs && odd != nullptr) {
    std::memcpy(odd, o, count * sizeof(T));
  }
}

// The place of a strip's columns in a panel.
struct Place {
  size_t first;   // element of the first input and column
  size_t row;     // elements from one input, or pair of inputs, to the next
  size_t stride;  // elements of a column's inputs side by side: interleave
  int32_t count;  // of columns
};

// Calls `decode` with the form and the place of columns from `column` on in a
// panel of this dtype and order.
template <class F>
HWY_INLINE void InPanel(DType dtype, const PanelOrder& order, int32_t column,
                        int32_t count, const F& decode) {
  const Place place = {
      .first = order.Position(column, 0),
      .row = static_cast<size_t>(order.block) * order.interleave,
      .stride = static_cast<size_t>(order.interleave),
      .count = count};
  if (dtype == DType::kFloat32) {
    decode.template operator()<Form::kFloat>(place);
  } else if (order.interleave == 1) {
    decode.template operator()<Form::kBf16>(place);
  } else {
    decode.template operator()<Form::kBf16Pairs>(place);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace sluice
HWY_AFTER_NAMESPACE();

#endif  // SLUICE_COLUMNS_INL_H_
