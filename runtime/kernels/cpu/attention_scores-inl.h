// Scores of a page's positions, in each format of KvLayout: what dense and
// sparse attention share. Compiled once per target, like simd-inl.h.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "common/float16.h"
#include "hwy/highway.h"
#include "runtime/kernels/cpu/attention.h"
#include "runtime/kernels/cpu/attention_parts.h"

#if defined(SLUICE_ATTENTION_SCORES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#undef SLUICE_BYTE_DOT
#ifdef SLUICE_ATTENTION_SCORES_INL_H_
#undef SLUICE_ATTENTION_SCORES_INL_H_
#else
#define SLUICE_ATTENTION_SCORES_INL_H_
#endif

#include "hwy/cache_control.h"
#include "hwy/contrib/math/math-inl.h"
#include "runtime/quant/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sluice {
namespace HWY_NAMESPACE {

// Rows that share each load of K and V: as many as accumulators fit into the
// registers.
#if HWY_TARGET <= HWY_AVX3
constexpr size_t kGroup = 8;
#else
constexpr size_t kGroup = 4;
#endif
constexpr size_t kPage = kPageTokens;
constexpr size_t kWordStride = AttentionScratch::kGroupRows;

using DI32 = hn::Rebind<int32_t, DF>;
using DI16 = hn::Repartition<int16_t, DI32>;
using VI32 = hn::Vec<DI32>;
using VU32 = hn::Vec<DU32>;

// Asks for `bytes` of memory that will be read soon. Pages are scattered, so
// that the processor cannot foresee them.
HWY_INLINE void PrefetchBytes(const std::byte* p, size_t bytes) {
  for (size_t i = 0; i < bytes; i += 64) hwy::Prefetch(p + i);
}

// s[r][j] = sum over i of q[r][i] * k[i][j]. Prefetches the next page's K,
// unless null.
template <size_t kRows, typename T>
HWY_INLINE void Scores(const T* HWY_RESTRICT k, const float* HWY_RESTRICT q,
                       size_t stride, size_t head_dim, const std::byte* next_k,
                       float* HWY_RESTRICT s) {
  const DF d;
  const size_t lanes = hn::Lanes(d);
  constexpr size_t kStepBytes = kPage * sizeof(T);
  for (size_t j = 0; j < kPage; j += 2 * lanes) {
    VF a0[kRows], a1[kRows];
    for (size_t r = 0; r < kRows; ++r) a0[r] = a1[r] = hn::Zero(d);
    const bool prefetch = j == 0 && next_k != nullptr;
    for (size_t i = 0; i < head_dim; ++i) {
      if (prefetch) PrefetchBytes(next_k + i * kStepBytes, kStepBytes);
      const VF k0 = LoadWide(k + i * kPage + j);
      const VF k1 = LoadWide(k + i * kPage + j + lanes);
      for (size_t r = 0; r < kRows; ++r) {
        const VF qv = hn::Set(d, q[r * stride + i]);
        a0[r] = hn::MulAdd(qv, k0, a0[r]);
        a1[r] = hn::MulAdd(qv, k1, a1[r]);
      }
    }
    for (size_t r = 0; r < kRows; ++r) {
      StoreWide(a0[r], s + r * kPage + j);
      StoreWide(a1[r], s + r * kPage + j + lanes);
    }
  }
}

// out[r] = the largest of s[r][begin, end), for pages with nothing but minus
// infinity out of range. Several rows take little longer than one.
template <size_t kRows>
HWY_INLINE void RowMaxima(const float* HWY_RESTRICT s,
                          float* HWY_RESTRICT out) {
  const DF d;
  const size_t lanes = hn::Lanes(d);
  VF top[kRows];
  for (size_t r = 0; r < kRows; ++r) {
    top[r] = LoadWide(s + r * kPage);
    for (size_t j = lanes; j < kPage; j += lanes) {
      top[r] = hn::Max(top[r], LoadWide(s + r * kPage + j));
    }
  }
#if HWY_TARGET != HWY_SCALAR
  if constexpr (kRows == kGroup) {
    if (lanes >= kRows) {
      // Neighbouring lanes are paired, of two rows at a time: each round halves
      // the vectors, until one holds lanes / kRows candidates of each row.
      for (size_t n = kRows; n > 1; n /= 2) {
        for (size_t r = 0; r < n / 2; ++r) {
          top[r] = hn::Max(hn::ConcatEven(d, top[2 * r + 1], top[2 * r]),
                           hn::ConcatOdd(d, top[2 * r + 1], top[2 * r]));
        }
      }
      for (size_t n = lanes; n > kRows; n /= 2) {
        top[0] = hn::Max(hn::ConcatEven(d, top[0], top[0]),
                         hn::ConcatOdd(d, top[0], top[0]));
      }
      HWY_ALIGN float maxima[kMaxLanes];
      hn::Store(top[0], d, maxima);
      std::memcpy(out, maxima, kRows * sizeof(float));
      return;
    }
  }
#endif
  for (size_t r = 0; r < kRows; ++r) {
    out[r] = hn::GetLane(hn::MaxOfLanes(d, top[r]));
  }
}

// Rounds to bfloat16, to even.
HWY_INLINE VF RoundToBf16(VF x) {
  const hn::RebindToUnsigned<DF> du;
  const auto bits = hn::BitCast(du, x);
  const auto even = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
  const auto up = hn::Add(bits, hn::Add(even, hn::Set(du, 0x7FFF)));
  return hn::BitCast(DF(), hn::And(up, hn::Set(du, 0xFFFF0000)));
}

// Sets a row's maximum and sum of weights, as they are before its first page: 1
// is the sink's weight. One that is no number makes the sum none.
HWY_INLINE void BeginRow(const AttentionCall& call, size_t row, float* max,
                         float* sum) {
  constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
  *max = call.sinks ? call.sink[row] : kMinusInfinity;
  *sum = *max == kMinusInfinity ? 0.0f : *max == *max ? 1.0f : *max;
}

// Caps the scores of rows [row, row + kRows) in a page, or adds distances to
// them (AttentionCall::cap, alibi).
template <size_t kRows>
HWY_INLINE void AdjustScores(const AttentionCall& call, size_t row,
                             int32_t page_begin, float* HWY_RESTRICT s) {
  const DF d;
  const size_t lanes = hn::Lanes(d);
  if (call.cap != 0) {
    const VF most = hn::Set(d, call.cap);
    const VF share = hn::Set(d, 1 / call.cap);
    for (size_t i = 0; i < kRows * kPage; i += lanes) {
      const VF x = hn::Mul(LoadWide(s + i), share);
      StoreWide(hn::Mul(most, hn::Tanh(d, x)), s + i);
    }
  }
  if (!call.alibi) return;
  for (size_t r = 0; r < kRows && call.rounded_alibi_scale != 0; ++r) {
    const VF slope = RoundToBf16(hn::Set(d, call.slope[row + r]));
    const auto bias = [&](VF position) {
      return RoundToBf16(hn::Mul(slope, RoundToBf16(position)));
    };
    const VF own = bias(hn::Set(d, static_cast<float>(call.end[row + r] - 1)));
    const VF scale = hn::Set(d, call.rounded_alibi_scale);
    for (size_t j = 0; j < kPage; j += lanes) {
      const VF position =
          hn::Iota(d, static_cast<float>(page_begin) + static_cast<float>(j));
      float* const at = s + r * kPage + j;
      const VF distance = hn::Sub(bias(position), own);
      StoreWide(hn::Add(LoadWide(at), hn::Mul(scale, distance)), at);
    }
  }
  if (call.rounded_alibi_scale != 0) return;
  for (size_t r = 0; r < kRows; ++r) {
    const VF slope = hn::Set(d, call.slope[row + r]);
    const auto first = static_cast<float>(page_begin + 1 - call.end[row + r]);
    for (size_t j = 0; j < kPage; j += lanes) {
      const VF distance = hn::Iota(d, first + static_cast<float>(j));
      float* const at = s + r * kPage + j;
      StoreWide(hn::Add(LoadWide(at), hn::Mul(slope, distance)), at);
    }
  }
}

// Puts minus infinity on the scores of a page out of [begin, end).
HWY_INLINE void HideOutOfRange(float* HWY_RESTRICT s, size_t begin,
                               size_t end) {
  constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
  for (size_t j = 0; j < begin; ++j) s[j] = kMinusInfinity;
  for (size_t j = end; j < kPage; ++j) s[j] = kMinusInfinity;
}

// Returns sum + x0 * y0 + x1 * y1, where lanes are pairs of 16-bit integers.
HWY_INLINE VI32 PairDot(VI32 sum, VU32 x, VI32 y) {
#if HWY_TARGET == HWY_AVX3_DL
  // Highway 1.0.3 has no operation for it and does not tell the compiler that
  // the target has AVX512_VNNI, so that the intrinsic is refused.
  asm("vpdpwssd %2, %1, %0" : "+v"(sum.raw) : "v"(x.raw), "v"(y.raw));
  return sum;
#elif HWY_ARCH_X86 && HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128
  VI32 unused = hn::Zero(DI32());
  return hn::ReorderWidenMulAccumulate(DI32(), hn::BitCast(DI16(), x),
                                       hn::BitCast(DI16(), y), sum, unused);
#else
  const VI32 xi = hn::BitCast(DI32(), x);
  const VI32 x0 = hn::ShiftRight<16>(hn::ShiftLeft<16>(xi));
  const VI32 y0 = hn::ShiftRight<16>(hn::ShiftLeft<16>(y));
  const VI32 high = hn::Mul(hn::ShiftRight<16>(xi), hn::ShiftRight<16>(y));
  return hn::Add(sum, hn::Add(hn::Mul(x0, y0), high));
#endif
}

// Returns sum + x0 * y0 + ... + x3 * y3, where the lanes are four bytes:
// unsigned of x, signed of y.
#if HWY_TARGET == HWY_AVX3_DL
#define SLUICE_BYTE_DOT 1
HWY_INLINE VI32 ByteDot(VI32 sum, VU32 x, VI32 y) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sum.raw) : "v"(x.raw), "v"(y.raw));
  return sum;
}
#else
#define SLUICE_BYTE_DOT 0
#endif

// Rounds a row's query to codes of kInt4Levels or kInt8Levels at most, each
// group by its largest element.
template <bool kInt4>
HWY_INLINE void RoundQuery(const float* HWY_RESTRICT q, size_t head_dim,
                           const QueryCodes& out) {
  const DF d;
  const hn::Rebind<int16_t, DF> di16;
  const size_t lanes = hn::Lanes(d);
  constexpr float kLevels = kInt4 ? kInt4Levels : kInt8Levels;
  for (size_t g = 0; g * kKvGroup < head_dim; ++g) {
    // The query is 0 behind its end.
    const float* x = q + g * kKvGroup;
    VF top = hn::Zero(d);
    VF sum = hn::Zero(d);
    for (size_t i = 0; i < kKvGroup; i += lanes) {
      const VF v = LoadWide(x + i);
      top = hn::Max(top, hn::Abs(v));
      sum = hn::Add(sum, v);
    }
    const float max = hn::GetLane(hn::MaxOfLanes(d, top));
    // The quotient of tiny numbers is not taken: it may be infinite.
    const bool some = max >= 1e-30f;
    const float unit = max / kLevels;
    const VF factor = hn::Set(d, some ? kLevels / max : 0.0f);
    HWY_ALIGN int16_t codes[kKvGroup];
    VI32 total = hn::Zero(DI32());
    for (size_t i = 0; i < kKvGroup; i += lanes) {
      const VI32 rounded = hn::NearestInt(hn::Mul(LoadWide(x + i), factor));
      total = hn::Add(total, rounded);
      hn::StoreU(hn::DemoteTo(di16, rounded), di16, codes + i);
    }
    out.units[2 * g] = unit;
    // The sum is of codes, so that a rounding error counts with an element of K
    // and not with its distance from the minimum. NaN and infinity show.
    out.units[2 * g + 1] =
        unit * static_cast<float>(hn::GetLane(hn::SumOfLanes(DI32(), total))) +
        0.0f * hn::GetLane(hn::SumOfLanes(d, sum));
    if constexpr (kInt4 && SLUICE_BYTE_DOT) {
      for (size_t t = 0; t < kKvGroup / 4; ++t) {
        int8_t four[4];
        for (size_t i = 0; i < 4; ++i) {
          four[i] = static_cast<int8_t>(codes[4 * t + i]);
        }
        std::memcpy(out.words + (g * kKvGroup / 4 + t) * kWordStride, four,
                    sizeof(four));
      }
      continue;
    }
    // Each four codes are stored as the even ones and then the odd ones.
    for (size_t t = 0; t < kKvGroup / 4; ++t) {
      uint64_t four;
      std::memcpy(&four, codes + 4 * t, sizeof(four));
      four = (four & 0xffff00000000ffffull) | (four >> 16 & 0xffff0000ull) |
             (four << 16 & 0xffff00000000ull);
      int32_t* words = out.words + (g * kKvGroup / 4 + t) * 2 * kWordStride;
      words[0] = static_cast<int32_t>(four);
      words[kWordStride] = static_cast<int32_t>(four >> 32);
    }
  }
}

// s[r][j] of one page, by the formula in attention.h. `head` is the head's
// block of the page, `next` that of the page whose K to prefetch, unless null.
template <size_t kRows, bool kInt4>
HWY_INLINE void CodeScores(const std::byte* HWY_RESTRICT head,
                           const HeadBlock& block, const std::byte* next,
                           const QueryCodes* queries, float* HWY_RESTRICT s) {
  const DF d;
  const DI32 di;
  const DU32 du;
  // Rows computed together are neighbours.
  const int32_t* HWY_RESTRICT words = queries[0].words;
  constexpr size_t kHalf = kPage / 2;
  // Bytes of four elements of all positions.
  constexpr size_t kFourBytes = kInt4 ? kPage * 2 : kPage * 4;
  const size_t lanes = hn::Lanes(d);
  const size_t fours = (block.head_dim + 3) / 4;
  const auto* scales = reinterpret_cast<const uint16_t*>(head + block.k_scales);
  const VU32 mask = hn::Set(du, kInt4 ? 0x000f000fu : 0x00ff00ffu);
  for (size_t j = 0; j < kHalf; j += lanes) {
    const bool prefetch = j == 0 && next != nullptr;
    for (size_t first = 0; first < fours; first += kKvGroup / 4) {
      const size_t g = first / (kKvGroup / 4);
      const size_t last = std::min<size_t>(first + kKvGroup / 4, fours);
      if (prefetch) {
        PrefetchBytes(next + block.k_scales + g * 4 * kPage, 4 * kPage);
      }
      // The sums for positions j and on, and for j + 16 and on.
      VI32 a0[kRows], a1[kRows];
      for (size_t r = 0; r < kRows; ++r) a0[r] = a1[r] = hn::Zero(di);
      for (size_t t = first; t < last; ++t) {
        if (prefetch) PrefetchBytes(next + t * kFourBytes, kFourBytes);
        const auto* codes = reinterpret_cast<const uint32_t*>(
            head + t * kFourBytes + j * sizeof(uint32_t));
        const VU32 v0 = hn::LoadU(du, codes);
#if SLUICE_BYTE_DOT
        if constexpr (kInt4) {
          const VU32 low = hn::Set(du, 0x0f0f0f0fu);
          const VU32 x0 = hn::And(v0, low);
          const VU32 x1 = hn::And(hn::ShiftRight<4>(v0), low);
          for (size_t r = 0; r < kRows; ++r) {
            const VI32 four = hn::Set(di, words[t * kWordStride + r]);
            a0[r] = ByteDot(a0[r], x0, four);
            a1[r] = ByteDot(a1[r], x1, four);
          }
          continue;
        }
#endif
        VU32 even1, odd1;
        if constexpr (kInt4) {
          even1 = hn::And(hn::ShiftRight<4>(v0), mask);
          odd1 = hn::And(hn::ShiftRight<12>(v0), mask);
        } else {
          const VU32 v1 = hn::LoadU(du, codes + kHalf);
          even1 = hn::And(v1, mask);
          odd1 = hn::And(hn::ShiftRight<8>(v1), mask);
        }
        const VU32 even0 = hn::And(v0, mask);
        const VU32 odd0 = hn::And(hn::ShiftRight<8>(v0), mask);
        for (size_t r = 0; r < kRows; ++r) {
          const VI32 even = hn::Set(di, words[2 * t * kWordStride + r]);
          const VI32 odd = hn::Set(di, words[(2 * t + 1) * kWordStride + r]);
          a0[r] = PairDot(a0[r], even0, even);
          a1[r] = PairDot(a1[r], even1, even);
          a0[r] = PairDot(a0[r], odd0, odd);
          a1[r] = PairDot(a1[r], odd1, odd);
        }
      }
      const uint16_t* scale = scales + g * 2 * kPage;
      const VF scale0 = LoadHalf(scale + j);
      const VF scale1 = LoadHalf(scale + j + kHalf);
      const VF min0 = LoadHalf(scale + kPage + j);
      const VF min1 = LoadHalf(scale + kPage + j + kHalf);
      for (size_t r = 0; r < kRows; ++r) {
        const VF unit = hn::Set(d, queries[r].units[2 * g]);
        const VF sum = hn::Set(d, queries[r].units[2 * g + 1]);
        float* out = s + r * kPage + j;
        VF base0 = hn::Mul(min0, sum);
        VF base1 = hn::Mul(min1, sum);
        if (first > 0) {
          base0 = hn::Add(base0, LoadWide(out));
          base1 = hn::Add(base1, LoadWide(out + kHalf));
        }
        const VF dot0 = hn::Mul(hn::ConvertTo(d, a0[r]), unit);
        const VF dot1 = hn::Mul(hn::ConvertTo(d, a1[r]), unit);
        StoreWide(hn::MulAdd(dot0, scale0, base0), out);
        StoreWide(hn::MulAdd(dot1, scale1, base1), out + kHalf);
      }
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace sluice
HWY_AFTER_NAMESPACE();

#endif  // SLUICE_ATTENTION_SCORES_INL_H_
