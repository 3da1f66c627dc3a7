#include <bit>
#include <cstring>

#include "runtime/quant/scaled_strip.h"
#include "runtime/quant/strip_codec.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/quant/strip_kernels.cc"
#include "hwy/foreach_target.h"
// Highway's header must follow foreach_target.h:
#include "hwy/highway.h"
#include "runtime/quant/columns-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sluice {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// A block's scales and minima, of each group and column. No minimum is -0, so
// that no weight is.
struct GroupNumbers {
  HWY_ALIGN float scale[kMaxCodeGroups][kStripColumns];
  HWY_ALIGN float minimum[kMaxCodeGroups][kStripColumns];
};

// A block's parameters, as a strip has them.
struct BlockParams {
  HWY_ALIGN float half[kMaxCodeHalves][kStripColumns];  // as float16
  const uint8_t* bytes;                                 // [bytes][16]
  const uint8_t* row(int byte) const { return bytes + byte * kStripColumns; }
};

// The formats whose codes count from `kZero`, and have a scale only.
template <int kZero>
HWY_INLINE void ScaleOnly(const BlockParams& from, GroupNumbers* to) {
  for (int c = 0; c < kStripColumns; ++c) {
    to->scale[0][c] = from.half[0][c];
    to->minimum[0][c] = from.half[0][c] * static_cast<float>(-kZero) + 0.0f;
  }
}

HWY_INLINE void ScaleAndMinimum(const BlockParams& from, GroupNumbers* to) {
  for (int c = 0; c < kStripColumns; ++c) {
    to->scale[0][c] = from.half[0][c];
    to->minimum[0][c] = from.half[1][c] + 0.0f;
  }
}

// A power of two, of twice the numbers in the table: ggml's halves.
HWY_INLINE void PowerOfTwo(const BlockParams& from, GroupNumbers* to) {
  for (int c = 0; c < kStripColumns; ++c) {
    const uint32_t e = from.bytes[c];
    const uint32_t bits = e < 2 ? uint32_t{0x200000} << e : (e - 1) << 23;
    to->scale[0][c] = std::bit_cast<float>(bits);
    to->minimum[0][c] = 0;
  }
}

// A scale and a minimum of 4 bits for each 16 inputs, in one byte.
HWY_INLINE void ByteOfTwo(const BlockParams& from, GroupNumbers* to) {
  for (int g = 0; g < 16; ++g) {
    const uint8_t* const both = from.row(g);
    for (int c = 0; c < kStripColumns; ++c) {
      const int scale = both[c] & 15;
      const int minimum = both[c] >> 4;
      to->scale[g][c] = from.half[0][c] * static_cast<float>(scale);
      to->minimum[g][c] = from.half[1][c] * static_cast<float>(-minimum) + 0.0f;
    }
  }
}

// 16 scales of 6 bits, from -32 on: 4 bits of two in each of the first 8 bytes,
// 2 bits of four in the rest. Codes count from 4.
HWY_INLINE void SixBitScales(const BlockParams& from, GroupNumbers* to) {
  for (int g = 0; g < 16; ++g) {
    const uint8_t* const low = from.row(g % 8);
    const uint8_t* const high = from.row(8 + g % 4);
    const int low_shift = g < 8 ? 0 : 4;
    const int high_shift = g / 4 * 2;
    for (int c = 0; c < kStripColumns; ++c) {
      const int scale = (low[c] >> low_shift & 15) | (high[c] >> high_shift & 3)
                                                         << 4;
      to->scale[g][c] = from.half[0][c] * static_cast<float>(scale - 32);
      to->minimum[g][c] = to->scale[g][c] * -4.0f + 0.0f;
    }
  }
}

// 8 scales and 8 minima of 6 bits in 12 bytes: of the first four each has a
// byte of its own, whose upper bits belong to the last four.
HWY_INLINE void SixBitPairs(const BlockParams& from, GroupNumbers* to) {
  for (int g = 0; g < 8; ++g) {
    const uint8_t* const a = from.row(g < 4 ? g : g + 4);
    const uint8_t* const b = from.row(g < 4 ? g + 4 : g);
    const uint8_t* const top = from.row(g < 4 ? g : g - 4);
    for (int c = 0; c < kStripColumns; ++c) {
      int scale, minimum;
      if (g < 4) {
        scale = a[c] & 63;
        minimum = b[c] & 63;
      } else {
        scale = (a[c] & 15) | top[c] >> 6 << 4;
        minimum = a[c] >> 4 | b[c] >> 6 << 4;
      }
      to->scale[g][c] = from.half[0][c] * static_cast<float>(scale);
      to->minimum[g][c] = from.half[1][c] * static_cast<float>(-minimum) + 0.0f;
    }
  }
}

// A signed byte for each 16 inputs; codes count from 32.
HWY_INLINE void SignedBytes(const BlockParams& from, GroupNumbers* to) {
  for (int g = 0; g < 16; ++g) {
    const uint8_t* const scale = from.row(g);
    for (int c = 0; c < kStripColumns; ++c) {
      to->scale[g][c] =
          from.half[0][c] * static_cast<float>(static_cast<int8_t>(scale[c]));
      to->minimum[g][c] = to->scale[g][c] * -32.0f + 0.0f;
    }
  }
}

// What codes stand for: themselves, or the entries of ggml's kvalues_iq4nl, or
// twice those of OCP's E2M1.
enum class Numbers { kCodes, kIq4, kE2M1 };
HWY_ALIGN constexpr float kIq4Numbers[16] = {
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
HWY_ALIGN constexpr float kE2M1Numbers[16] = {0, 1,  2,  3,  4,  6,  8,  12,
                                              0, -1, -2, -3, -4, -6, -8, -12};

template <Numbers kNumbers>
HWY_INLINE VF NumberOf(VU code) {
  const DF d;
  if constexpr (kNumbers == Numbers::kCodes) {
    return hn::ConvertTo(d, hn::BitCast(DI(), code));
  } else {
    const float* const table =
        kNumbers == Numbers::kIq4 ? kIq4Numbers : kE2M1Numbers;
    if constexpr (kLookUp) {
      return hn::TableLookupLanes(hn::Load(d, table),
                                  hn::IndicesFromVec(d, code));
    } else {
      return hn::GatherIndex(d, table, hn::BitCast(DI(), code));
    }
  }
}

HWY_INLINE VU LoadBytes(const uint8_t* from) {
  return hn::PromoteTo(DU(), hn::LoadU(DU8(), from));
}

// Returns the codes of input kInput of the 8 that lie from `from` on, of a
// vector of columns.
template <int kBits, int kInput>
HWY_INLINE VU CodesOf(const uint8_t* from) {
  constexpr int kLow = kBits >= 8 ? 8 : kBits >= 4 ? 4 : 2;
  constexpr int kHigh = kBits - kLow;
  const DU du;
  if constexpr (kLow == 8) {
    const auto* words = reinterpret_cast<const uint16_t*>(
        from + kInput / 2 * 2 * kStripColumns);
    const VU both = hn::PromoteTo(du, hn::LoadU(DU16(), words));
    return kInput % 2 == 0 ? hn::And(both, hn::Set(du, 255))
                           : hn::ShiftRight<8>(both);
  } else {
    constexpr int kPer = 8 / kLow;
    constexpr int kShift = kInput % kPer * kLow;
    const VU some = LoadBytes(from + kInput / kPer * kStripColumns);
    const VU moved = hn::ShiftRight<kShift>(some);
    const VU low = kShift + kLow == 8
                       ? moved
                       : hn::And(moved, hn::Set(du, (1u << kLow) - 1));
    if constexpr (kHigh == 0) {
      return low;
    } else {
      // The upper bits move to their place in one step.
      constexpr int kPerHigh = 8 / kHigh;
      constexpr int kBy = kInput % kPerHigh * kHigh - kLow;
      const VU high =
          LoadBytes(from + (kLow + kInput / kPerHigh) * size_t{kStripColumns});
      const VU mask = hn::Set(du, ((1u << kHigh) - 1) << kLow);
      if constexpr (kBy >= 0) {
        return hn::OrAnd(low, hn::ShiftRight<kBy>(high), mask);
      } else {
        return hn::OrAnd(low, hn::ShiftLeft<-kBy>(high), mask);
      }
    }
  }
}

// A format at compile time: its codes, what they stand for, and how parameters
// become scales and minima.
template <int kBitsOf, int kBlockOf, int kGroupOf, Numbers kNumbersOf>
struct Traits {
  static constexpr int kBits = kBitsOf;
  static constexpr int32_t kBlock = kBlockOf;
  static constexpr int32_t kGroup = kGroupOf;
  static constexpr Numbers kNumbers = kNumbersOf;
};

// Converts a pair's numbers. Those of MXFP4 are bfloat16 as they are.
template <Form kForm, class F>
HWY_INLINE Decoded<kForm> ConvertOf(VF even, VF odd) {
  if constexpr (kForm == Form::kRounded && F::kNumbers == Numbers::kE2M1) {
    return {even, odd};
  } else {
    return Convert<kForm>(even, odd);
  }
}

// Calls on_pair(even, odd) with the numbers of each two inputs of a group, of a
// vector of columns from `c` on.
template <class F, typename OnPair>
HWY_INLINE void DecodePairs(const uint8_t* codes, size_t c, VF scale,
                            VF minimum, OnPair on_pair) {
  constexpr size_t kTogether = size_t{kStripColumns} * F::kBits;  // bytes of 8
  const uint8_t* from = codes + (F::kBits == 8 ? 2 * c : c);
  const auto pair = [&](auto input) HWY_ATTR {
    constexpr int kInput = decltype(input)::value;
    on_pair(
        hn::MulAdd(NumberOf<F::kNumbers>(CodesOf<F::kBits, kInput>(from)),
                   scale, minimum),
        hn::MulAdd(NumberOf<F::kNumbers>(CodesOf<F::kBits, kInput + 1>(from)),
                   scale, minimum));
  };
  for (int32_t i = 0; i < F::kGroup; i += 8) {
    pair(std::integral_constant<int, 0>());
    pair(std::integral_constant<int, 2>());
    pair(std::integral_constant<int, 4>());
    pair(std::integral_constant<int, 6>());
    from += kTogether;
  }
}

// Calls on_group(codes, scales, minima) for each group of k inputs.
template <class F, typename Params, typename OnGroup>
HWY_INLINE void ForGroups(const CodeFormat& format, const uint8_t* strip,
                          int32_t k, Params params, OnGroup on_group) {
  const DF d;
  BlockParams from;
  GroupNumbers numbers;
  for (int32_t block = 0; block < k / F::kBlock; ++block) {
    for (int half = 0; half < format.halves; ++half) {
      HWY_ALIGN hwy::float16_t some[kStripColumns];
      std::memcpy(some, strip, sizeof some);
      strip += sizeof some;
      for (size_t c = 0; c < kStripColumns; c += hn::Lanes(d)) {
        hn::Store(hn::PromoteTo(d, hn::Load(DF16(), some + c)), d,
                  from.half[half] + c);
      }
    }
    from.bytes = strip;
    strip += format.bytes * kStripColumns;
    params(from, &numbers);
    for (int32_t g = 0; g < F::kBlock / F::kGroup; ++g) {
      on_group(strip, numbers.scale[g], numbers.minimum[g]);
      strip += size_t{F::kGroup} * F::kBits * kStripColumns / 8;
    }
  }
}

// Writes numbers to their places in a panel, the next group's after the last
// one's.
template <Form kForm>
struct Writer {
  using T = std::conditional_t<kIsFloats<kForm>, float, uint16_t>;
  const Place place;
  T* out;

  template <class F>
  HWY_INLINE void Group(const uint8_t* codes, const float* scales,
                        const float* minima) {
    const DF d;
    const size_t lanes = hn::Lanes(d);
    for (size_t c = 0; c < static_cast<size_t>(place.count); c += lanes) {
      const size_t left = place.count - c;
      T* to = out + c * place.stride;
      DecodePairs<F>(
          codes, c, hn::Load(d, scales + c), hn::Load(d, minima + c),
          [&](VF even, VF odd) HWY_ATTR {
            T* const next =
                kForm == Form::kBf16Pairs ? nullptr : to + place.row;
            if (left >= lanes) {
              StoreColumns<kForm>(ConvertOf<kForm, F>(even, odd), to, next);
            } else {
              StoreSome<kForm>(ConvertOf<kForm, F>(even, odd), left, to, next);
            }
            to += kForm == Form::kBf16Pairs ? place.row : 2 * place.row;
          });
    }
    out += place.row * (kForm == Form::kBf16Pairs ? F::kGroup / 2 : F::kGroup);
  }
};

// Multiplies rows by numbers, of which each is used at once, and adds to sums.
template <Form kForm, int kRows>
struct Multiplier {
  const float* a;  // the next group's inputs
  const size_t a_row, sums_row;
  float* const sums;

  template <class F>
  HWY_INLINE void Group(const uint8_t* codes, const float* scales,
                        const float* minima) {
    const DF d;
    for (size_t c = 0; c < kStripColumns; c += hn::Lanes(d)) {
      const float* next = a;
      VF sum[kRows];
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        sum[r] = hn::LoadU(d, sums + r * sums_row + c);
      }
      DecodePairs<F>(
          codes, c, hn::Load(d, scales + c), hn::Load(d, minima + c),
          [&](VF even, VF odd) HWY_ATTR {
            const Decoded<kForm> w = ConvertOf<kForm, F>(even, odd);
            // bfloat16's are added with the odd input first.
            constexpr int kFirst = kForm == Form::kRounded ? 1 : 0;
            const VF first = kFirst == 1 ? w.odd : w.even;
            const VF second = kFirst == 1 ? w.even : w.odd;
#pragma GCC unroll 4
            for (int r = 0; r < kRows; ++r) {
              const float* const x = next + r * a_row;
              sum[r] = hn::MulAdd(hn::Set(d, x[kFirst]), first, sum[r]);
              sum[r] = hn::MulAdd(hn::Set(d, x[1 - kFirst]), second, sum[r]);
            }
            next += 2;
          });
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        hn::StoreU(sum[r], d, sums + r * sums_row + c);
      }
    }
    a += F::kGroup;
  }
};

// Gives a strip's groups to a Writer or a Multiplier.
template <typename Sink>
HWY_INLINE void DecodeFormat(const CodeFormat& format, const uint8_t* strip,
                             int32_t k, Sink sink) {
  const auto decode = [&](auto traits, auto params) HWY_ATTR {
    using F = decltype(traits);
    ForGroups<F>(
        format, strip, k, params,
        [&](const uint8_t* codes, const float* scales, const float* minima)
            HWY_ATTR { sink.template Group<F>(codes, scales, minima); });
  };
  constexpr Numbers kCodes = Numbers::kCodes;
  switch (format.kind) {
    case CodeKind::kQ4_0:
      return decode(Traits<4, 32, 32, kCodes>(), &ScaleOnly<8>);
    case CodeKind::kQ4_1:
      return decode(Traits<4, 32, 32, kCodes>(), &ScaleAndMinimum);
    case CodeKind::kQ5_0:
      return decode(Traits<5, 32, 32, kCodes>(), &ScaleOnly<16>);
    case CodeKind::kQ5_1:
      return decode(Traits<5, 32, 32, kCodes>(), &ScaleAndMinimum);
    case CodeKind::kQ8_0:
      return decode(Traits<8, 32, 32, kCodes>(), &ScaleOnly<128>);
    case CodeKind::kQ2_K:
      return decode(Traits<2, 256, 16, kCodes>(), &ByteOfTwo);
    case CodeKind::kQ3_K:
      return decode(Traits<3, 256, 16, kCodes>(), &SixBitScales);
    case CodeKind::kQ4_K:
      return decode(Traits<4, 256, 32, kCodes>(), &SixBitPairs);
    case CodeKind::kQ5_K:
      return decode(Traits<5, 256, 32, kCodes>(), &SixBitPairs);
    case CodeKind::kQ6_K:
      return decode(Traits<6, 256, 16, kCodes>(), &SignedBytes);
    case CodeKind::kIq4Nl:
      return decode(Traits<4, 32, 32, Numbers::kIq4>(), &ScaleOnly<0>);
    case CodeKind::kMxFp4:
      return decode(Traits<4, 32, 32, Numbers::kE2M1>(), &PowerOfTwo);
    case CodeKind::kScaled:
      break;
  }
}

template <Form kForm>
HWY_INLINE void Write(const CodeFormat& format, const uint8_t* strip, int32_t k,
                      const Place& place, void* out) {
  DecodeFormat(
      format, strip, k,
      Writer<kForm>{
          place, static_cast<typename Writer<kForm>::T*>(out) + place.first});
}

void DecodeStripImpl(const CodeFormat& format, const std::byte* strip,
                     int32_t k, DType dtype, const PanelOrder& order,
                     int32_t column, int32_t count, void* out) {
  const auto* const from = reinterpret_cast<const uint8_t*>(strip);
  InPanel(dtype, order, column, count,
          [&]<Form kForm>(const Place& place)
              HWY_ATTR { Write<kForm>(format, from, k, place, out); });
}

const uint8_t* SliceBegin(const CodeFormat& format, const std::byte* strip,
                          int32_t begin) {
  return reinterpret_cast<const uint8_t*>(strip) +
         kStripColumns * format.row_bytes(begin);
}

void DecodeSliceImpl(const CodeFormat& format, const std::byte* strip,
                     int32_t begin, int32_t end, DType dtype, float* out) {
  constexpr Place kPlace = {0, kStripColumns, 1, kStripColumns};
  const uint8_t* const from = SliceBegin(format, strip, begin);
  if (dtype == DType::kFloat32) {
    Write<Form::kFloat>(format, from, end - begin, kPlace, out);
  } else {
    Write<Form::kRounded>(format, from, end - begin, kPlace, out);
  }
}

template <Form kForm>
HWY_INLINE void MultiplyForm(const CodeFormat& format, const uint8_t* strip,
                             int32_t k, const float* a, size_t a_row,
                             int32_t rows, float* sums, size_t sums_row) {
  if (rows == 1) {
    DecodeFormat(format, strip, k,
                 Multiplier<kForm, 1>{a, a_row, sums_row, sums});
  } else {
    DecodeFormat(format, strip, k,
                 Multiplier<kForm, kFewRows>{a, a_row, sums_row, sums});
  }
}

void MultiplyStripImpl(const CodeFormat& format, const std::byte* strip,
                       int32_t begin, int32_t end, DType dtype, const float* a,
                       size_t a_row, int32_t rows, float* sums,
                       size_t sums_row) {
  const uint8_t* const from = SliceBegin(format, strip, begin);
  if (dtype == DType::kFloat32) {
    MultiplyForm<Form::kFloat>(format, from, end - begin, a, a_row, rows, sums,
                               sums_row);
  } else {
    MultiplyForm<Form::kRounded>(format, from, end - begin, a, a_row, rows,
                                 sums, sums_row);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace sluice
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice {

HWY_EXPORT(DecodeStripImpl);
HWY_EXPORT(DecodeSliceImpl);
HWY_EXPORT(MultiplyStripImpl);

void DecodeStrip(const CodeFormat& format, const std::byte* strip, int32_t k,
                 DType dtype, const PanelOrder& order, int32_t column,
                 int32_t count, void* out, const std::byte* groups) {
  if (format.scaled != nullptr) {
    return DecodeScaledStrip(format, strip, groups, k, dtype, order, column,
                             count, out);
  }
  HWY_DYNAMIC_DISPATCH(DecodeStripImpl)
  (format, strip, k, dtype, order, column, count, out);
}

void DecodeSlice(const CodeFormat& format, const std::byte* strip,
                 int32_t begin, int32_t end, DType dtype, float* out) {
  HWY_DYNAMIC_DISPATCH(DecodeSliceImpl)
  (format, strip, begin, end, dtype, out);
}

void MultiplyStrip(const CodeFormat& format, const std::byte* strip,
                   int32_t begin, int32_t end, DType dtype, const float* a,
                   size_t a_row, int32_t rows, float* sums, size_t sums_row) {
  HWY_DYNAMIC_DISPATCH(MultiplyStripImpl)
  (format, strip, begin, end, dtype, a, a_row, rows, sums, sums_row);
}

}  // namespace sluice
#endif
