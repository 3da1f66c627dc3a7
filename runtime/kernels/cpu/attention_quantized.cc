#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>

#include "runtime/kernels/cpu/attention.h"
#include "runtime/kernels/cpu/attention_parts.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/kernels/cpu/attention_quantized.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h:
#include "hwy/highway.h"
#include "runtime/kernels/cpu/attention_scores-inl.h"
#include "runtime/quant/simd-inl.h"

// Dense attention over pages of 8-bit and 4-bit codes. Products are integer
// (see attention.h), of pairs of elements for the scores and of pairs of
// positions for the values. Integer sums are exact, so that their order, and
// with it the number of rows computed together, does not matter.
//
// Accumulators are in the order in which the codes of V fall out of the
// registers: 2 * lanes bytes of a row give, for each half of the bytes (one for
// 8 bits), a vector of the even bytes and one of the odd ones. WriteRow undoes
// it.

HWY_BEFORE_NAMESPACE();
namespace sluice {
namespace HWY_NAMESPACE {
namespace {

// Weights below this, relative to the running maximum's, are taken for 0.
constexpr float kNoWeight = 1e-30f;
// Added to a small number, it leaves the nearest integer in the low bits.
constexpr float kShifter = 12582912.0f;
constexpr size_t kSumLanes = AttentionScratch::kSumLanes;
static_assert(kGroup <= AttentionScratch::kGroupRows);

struct Rows {
  float max[kAttentionRows];
};

// Loads the scales and minima of a page's V at positions [begin, end), 0
// elsewhere, with scales relative to the group's largest.
HWY_INLINE void LoadScales(const uint16_t* HWY_RESTRICT halves, size_t groups,
                           size_t begin, size_t end, const PageScales& out) {
  const DF d;
  const DI32 di;
  const size_t lanes = hn::Lanes(d);
  const VI32 first = hn::Set(di, static_cast<int32_t>(begin));
  const VI32 last = hn::Set(di, static_cast<int32_t>(end));
  for (size_t g = 0; g < groups; ++g) {
    const uint16_t* from = halves + g * 2 * kPage;
    float* scale = out.scales + g * kPage;
    float* minimum = out.minima + g * kPage;
    VF top = hn::Zero(d);
    for (size_t j = 0; j < kPage; j += lanes) {
      const VI32 at = hn::Iota(di, static_cast<int32_t>(j));
      const auto in =
          hn::RebindMask(d, hn::AndNot(hn::Lt(at, first), hn::Lt(at, last)));
      const VF s = hn::IfThenElseZero(in, LoadHalf(from + j));
      StoreWide(s, scale + j);
      StoreWide(hn::IfThenElseZero(in, LoadHalf(from + kPage + j)),
                minimum + j);
      top = hn::Max(top, s);
    }
    const float max = hn::GetLane(hn::MaxOfLanes(d, top));
    out.largest[g] = max;
    const VF factor = hn::Set(d, max > 0 ? 1.0f / max : 0.0f);
    for (size_t j = 0; j < kPage; j += lanes) {
      StoreWide(hn::Mul(LoadWide(scale + j), factor), scale + j);
    }
  }
}

// Returns exp(x) for x <= 0, to about one unit in the last place; 0 below -87
// and for NaN. It follows Cephes' expf: 2^n times a polynomial in the rest.
HWY_INLINE VF ExpNonPositive(VF x) {
  const DF d;
  const VF shifter = hn::Set(d, kShifter);
  const VF shifted = hn::MulAdd(x, hn::Set(d, 1.44269504f), shifter);
  const VF n = hn::Sub(shifted, shifter);
  VF rest = hn::NegMulAdd(n, hn::Set(d, 0.693359375f), x);
  rest = hn::NegMulAdd(n, hn::Set(d, -2.12194440e-4f), rest);
  VF y = hn::Set(d, 1.9875691500e-4f);
  y = hn::MulAdd(y, rest, hn::Set(d, 1.3981999507e-3f));
  y = hn::MulAdd(y, rest, hn::Set(d, 8.3334519073e-3f));
  y = hn::MulAdd(y, rest, hn::Set(d, 4.1665795894e-2f));
  y = hn::MulAdd(y, rest, hn::Set(d, 1.6666665459e-1f));
  y = hn::MulAdd(y, rest, hn::Set(d, 5.0000001201e-1f));
  y = hn::MulAdd(y, hn::Mul(rest, rest), hn::Add(rest, hn::Set(d, 1.0f)));
  const VI32 exponent = hn::ShiftLeft<23>(hn::BitCast(DI32(), shifted));
  const VF power = hn::BitCast(d, hn::Add(hn::BitCast(DI32(), y), exponent));
  return hn::IfThenElseZero(hn::Ge(x, hn::Set(d, -87.0f)), power);
}

// The largest weights that kRows rows have in a page.
template <size_t kRows>
struct PageWeights {
  // A row's largest weight, and the largest code divided by that.
  HWY_ALIGN float largest[kRows + kMaxLanes];
  HWY_ALIGN float factor[kRows + kMaxLanes];
};

// Takes scores s of a page, [begin, end) of each active row, into the rows'
// running maxima and sums; leaves the positions' weights in s.
template <size_t kRows, bool kInt4>
HWY_INLINE void WeighPage(const int32_t* begin, const int32_t* end,
                          const bool* active, size_t row, Rows& rows,
                          AttentionScratch& scratch, size_t num_sums,
                          float* HWY_RESTRICT s, PageWeights<kRows>& out) {
  const DF d;
  const size_t lanes = hn::Lanes(d);
  constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
  HWY_ALIGN float page_max[kRows + kMaxLanes] = {};
  HWY_ALIGN float max[kRows + kMaxLanes] = {};
  for (size_t r = 0; r < kRows; ++r) {
    if (active[r]) HideOutOfRange(s + r * kPage, begin[r], end[r]);
  }
  RowMaxima<kRows>(s, page_max);
  for (size_t r = 0; r < kRows; ++r) {
    max[r] = rows.max[row + r];
    if (!active[r] || !(page_max[r] > max[r])) continue;
    if (max[r] != kMinusInfinity) {
      const VF factor = ExpNonPositive(hn::Set(d, max[r] - page_max[r]));
      float* acc = scratch.accumulator() + (row + r) * scratch.stride();
      for (size_t i = 0; i < static_cast<size_t>(scratch.stride());
           i += lanes) {
        StoreWide(hn::Mul(LoadWide(acc + i), factor), acc + i);
      }
      float* sums = scratch.sums(row + r);
      for (size_t i = 0; i < num_sums; i += lanes) {
        StoreWide(hn::Mul(LoadWide(sums + i), factor), sums + i);
      }
    }
    rows.max[row + r] = max[r] = page_max[r];
  }
  for (size_t r = 0; r < kRows; r += lanes) {
    const VF largest = ExpNonPositive(
        hn::Sub(hn::Load(d, page_max + r), hn::Load(d, max + r)));
    hn::Store(largest, d, out.largest + r);
    const VF levels = hn::Set(d, kInt4 ? kInt4Levels : kInt8Levels);
    hn::Store(hn::Div(levels, largest), d, out.factor + r);
  }
  for (size_t r = 0; r < kRows; ++r) {
    if (!active[r]) continue;
    const VF shift = hn::Set(d, max[r]);
    float* sums = scratch.sums(row + r);
    float* p = s + r * kPage;
    VF total = LoadWide(sums);
    for (size_t j = 0; j < kPage; j += lanes) {
      const VF weight = ExpNonPositive(hn::Sub(LoadWide(p + j), shift));
      total = hn::Add(total, weight);
      StoreWide(weight, p + j);
    }
    StoreWide(total, sums);
  }
}

// The codes of weights have 16 bits, or 8 where bytes are multiplied.
template <bool kInt4>
using WeightCode =
    std::conditional_t<kInt4 && SLUICE_BYTE_DOT, uint8_t, uint16_t>;

// Rounds a row's weights p of a page: writes codes of p * scale for each group,
// the value of a code of 1, and the sums of p * minimum. The sums make good
// what rounding costs in the middle of the range of V's codes, so that it
// counts with their distance from there.
template <bool kInt4>
HWY_INLINE void RoundWeights(const float* HWY_RESTRICT p, float largest,
                             float factor, const PageScales& scales,
                             size_t groups,
                             WeightCode<kInt4>* HWY_RESTRICT codes,
                             float* HWY_RESTRICT units,
                             float* HWY_RESTRICT sums) {
  const DF d;
  const hn::Rebind<WeightCode<kInt4>, DF> dc;
  const size_t lanes = hn::Lanes(d);
  constexpr float kLevels = kInt4 ? kInt4Levels : kInt8Levels;
  const VF factor_v = hn::Set(d, factor);
  const VF shifter = hn::Set(d, kShifter);
  for (size_t g = 0; g < groups; ++g) {
    const float* scale = scales.scales + g * kPage;
    const float* minimum = scales.minima + g * kPage;
    VF sum = LoadWide(sums + g * kSumLanes);
    VF lost = hn::Zero(d);
    for (size_t j = 0; j < kPage; j += lanes) {
      const VF weight = LoadWide(p + j);
      sum = hn::MulAdd(weight, LoadWide(minimum + j), sum);
      const VF share = hn::Mul(hn::Mul(weight, factor_v), LoadWide(scale + j));
      const VF shifted = hn::Add(share, shifter);
      lost = hn::Add(lost, hn::Sub(share, hn::Sub(shifted, shifter)));
      // The share is within the range of a code: only the low bits count.
      const VU32 bits = hn::And(hn::BitCast(DU32(), shifted),
                                hn::Set(DU32(), kInt4 ? 0xffu : 0xffffu));
      hn::StoreU(hn::DemoteTo(dc, hn::BitCast(DI32(), bits)), dc,
                 codes + g * kPage + j);
    }
    units[g] = largest * scales.largest[g] * (1.0f / kLevels);
    const VF middle = hn::Set(d, (kInt4 ? 7.5f : 127.5f) * units[g]);
    StoreWide(hn::MulAdd(lost, middle, sum), sums + g * kSumLanes);
  }
}

// Loads 2 * lanes bytes, widened to 16 bits each.
HWY_INLINE VU32 LoadBytes(const uint8_t* p) {
#if HWY_TARGET == HWY_SCALAR
  return hn::Set(DU32(), uint32_t{p[0]} | uint32_t{p[1]} << 16);
#else
  const hn::Repartition<uint16_t, DU32> du16;
  const hn::Rebind<uint8_t, decltype(du16)> du8;
  return hn::BitCast(DU32(), hn::PromoteTo(du16, hn::LoadU(du8, p)));
#endif
}

// Return two codes of each lane's element, from neighbouring positions' bytes x
// and y: of the even bytes, or of the odd ones.
HWY_INLINE VU32 EvenPairs(VU32 x, VU32 y) {
  const VU32 low = hn::Set(DU32(), 0xffffu);
  return hn::Or(hn::And(x, low), hn::ShiftLeft<16>(y));
}
HWY_INLINE VU32 OddPairs(VU32 x, VU32 y) {
  const VU32 low = hn::Set(DU32(), 0xffffu);
  return hn::Or(hn::ShiftRight<16>(x), hn::AndNot(low, y));
}

// Adds 2 * lanes bytes of each of a page's rows of V, at `v`, to the
// accumulators of kRows rows: halves [kFirst, kFirst + kCount) of the bytes.
template <size_t kRows, bool kInt4, size_t kFirst, size_t kCount>
HWY_INLINE void AddValueBytes(const uint8_t* HWY_RESTRICT v, size_t row_bytes,
                              const uint16_t* HWY_RESTRICT codes,
                              size_t code_stride, const float* unit,
                              size_t unit_stride, const bool* active,
                              float* HWY_RESTRICT acc, size_t stride) {
  const DF d;
  const DI32 di;
  const DU32 du;
  const size_t lanes = hn::Lanes(d);
  const VU32 mask = hn::Set(du, 0x000f000fu);
  VI32 even[kRows][kCount], odd[kRows][kCount];
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t c = 0; c < kCount; ++c) even[r][c] = odd[r][c] = hn::Zero(di);
  }
  for (size_t j = 0; j < kPage; j += 2) {
    const uint8_t* row = v + j * row_bytes;
    const VU32 x = LoadBytes(row);
    const VU32 y = LoadBytes(row + row_bytes);
    const VU32 even_bytes = EvenPairs(x, y);
    const VU32 odd_bytes = OddPairs(x, y);
    VU32 e[kCount], o[kCount];
    for (size_t c = 0; c < kCount; ++c) {
      if constexpr (!kInt4) {
        e[c] = even_bytes;
        o[c] = odd_bytes;
      } else if (kFirst + c == 0) {
        e[c] = hn::And(even_bytes, mask);
        o[c] = hn::And(odd_bytes, mask);
      } else {
        e[c] = hn::And(hn::ShiftRight<4>(even_bytes), mask);
        o[c] = hn::And(hn::ShiftRight<4>(odd_bytes), mask);
      }
    }
    for (size_t r = 0; r < kRows; ++r) {
      int32_t pair;
      std::memcpy(&pair, codes + r * code_stride + j, sizeof(pair));
      const VI32 weight = hn::Set(di, pair);
      for (size_t c = 0; c < kCount; ++c) {
        even[r][c] = PairDot(even[r][c], e[c], weight);
        odd[r][c] = PairDot(odd[r][c], o[c], weight);
      }
    }
  }
  for (size_t r = 0; r < kRows; ++r) {
    if (!active[r]) continue;
    const VF u = hn::Set(d, unit[r * unit_stride]);
    for (size_t c = 0; c < kCount; ++c) {
      float* to = acc + r * stride + (kFirst + c) * 2 * lanes;
      StoreWide(hn::MulAdd(hn::ConvertTo(d, even[r][c]), u, LoadWide(to)), to);
      to += lanes;
      StoreWide(hn::MulAdd(hn::ConvertTo(d, odd[r][c]), u, LoadWide(to)), to);
    }
  }
}

#if SLUICE_BYTE_DOT
// Adds 4-bit codes of V with weights of 8 bits, four positions at a time. First
// the bytes of the four are brought together, for all rows.
template <size_t kRows>
HWY_INLINE void AddNibbles(const uint8_t* HWY_RESTRICT v, size_t row_bytes,
                           const uint8_t* HWY_RESTRICT codes,
                           size_t code_stride, const float* unit,
                           size_t unit_stride, const bool* active,
                           float* HWY_RESTRICT acc, size_t stride) {
  const DF d;
  const DI32 di;
  const DU32 du;
  const hn::Repartition<uint16_t, DU32> du16;
  const size_t lanes = hn::Lanes(d);
  constexpr size_t kFours = kPage / 4;
  // Low halves of the even bytes and of the odd ones, then the high halves.
  HWY_ALIGN uint32_t fours[4][kFours][kMaxLanes];
  const VU32 low = hn::Set(du, 0x0f0f0f0fu);
  for (size_t t = 0; t < kFours; ++t) {
    const uint8_t* row = v + 4 * t * row_bytes;
    const auto pair = [&](const uint8_t* first) HWY_ATTR {
      const auto second = hn::BitCast(du16, LoadBytes(first + row_bytes));
      return hn::BitCast(du, hn::Or(hn::BitCast(du16, LoadBytes(first)),
                                    hn::ShiftLeft<8>(second)));
    };
    const VU32 x = pair(row);
    const VU32 y = pair(row + 2 * row_bytes);
    const VU32 even = EvenPairs(x, y);
    const VU32 odd = OddPairs(x, y);
    hn::Store(hn::And(even, low), du, fours[0][t]);
    hn::Store(hn::And(odd, low), du, fours[1][t]);
    hn::Store(hn::And(hn::ShiftRight<4>(even), low), du, fours[2][t]);
    hn::Store(hn::And(hn::ShiftRight<4>(odd), low), du, fours[3][t]);
  }
  for (size_t half = 0; half < 4; half += 2) {
    VI32 even[kRows], odd[kRows];
    for (size_t r = 0; r < kRows; ++r) even[r] = odd[r] = hn::Zero(di);
    for (size_t t = 0; t < kFours; ++t) {
      const VU32 x = hn::Load(du, fours[half][t]);
      const VU32 y = hn::Load(du, fours[half + 1][t]);
      for (size_t r = 0; r < kRows; ++r) {
        int32_t four;
        std::memcpy(&four, codes + r * code_stride + 4 * t, sizeof(four));
        const VI32 weight = hn::Set(di, four);
        even[r] = ByteDot(even[r], x, weight);
        odd[r] = ByteDot(odd[r], y, weight);
      }
    }
    for (size_t r = 0; r < kRows; ++r) {
      if (!active[r]) continue;
      const VF u = hn::Set(d, unit[r * unit_stride]);
      float* to = acc + r * stride + half * lanes;
      StoreWide(hn::MulAdd(hn::ConvertTo(d, even[r]), u, LoadWide(to)), to);
      to += lanes;
      StoreWide(hn::MulAdd(hn::ConvertTo(d, odd[r]), u, LoadWide(to)), to);
    }
  }
}
#endif

template <size_t kRows, bool kInt4>
HWY_INLINE void AddValues(const std::byte* head, const HeadBlock& block,
                          const std::byte* next, const WeightCode<kInt4>* codes,
                          const float* units, const bool* active, float* acc,
                          size_t stride) {
  constexpr size_t kGroupBytes = kInt4 ? kKvGroup / 2 : kKvGroup;
  const size_t step = 2 * hn::Lanes(DF());
  const size_t groups = block.groups;
  const size_t row_bytes = block.v_row_bytes;
  const auto* v = reinterpret_cast<const uint8_t*>(head + block.v);
  for (size_t b = 0; b < row_bytes; b += step) {
    if (next != nullptr) {
      // This block's share of the next page's V.
      const size_t bytes = block.bytes - block.v;
      const size_t share = (bytes * step / row_bytes + 63) / 64 * 64;
      const size_t from = b / step * share;
      if (from < bytes) {
        PrefetchBytes(next + block.v + from, std::min(share, bytes - from));
      }
    }
    const size_t g = b / kGroupBytes;
    const auto* c = codes + g * kPage;
    const size_t code_stride = groups * kPage;
    const float* u = units + g;
    if constexpr (!kInt4) {
      AddValueBytes<kRows, false, 0, 1>(v + b, row_bytes, c, code_stride, u,
                                        groups, active, acc + b, stride);
    } else if constexpr (SLUICE_BYTE_DOT) {
#if SLUICE_BYTE_DOT
      AddNibbles<kRows>(v + b, row_bytes, c, code_stride, u, groups, active,
                        acc + 2 * b, stride);
#endif
    } else if constexpr (kRows <= kGroup / 2) {
      AddValueBytes<kRows, true, 0, 2>(v + b, row_bytes, c, code_stride, u,
                                       groups, active, acc + 2 * b, stride);
    } else {
      AddValueBytes<kRows, true, 0, 1>(v + b, row_bytes, c, code_stride, u,
                                       groups, active, acc + 2 * b, stride);
      AddValueBytes<kRows, true, 1, 1>(v + b, row_bytes, c, code_stride, u,
                                       groups, active, acc + 2 * b, stride);
    }
  }
}

// Attends rows [row, row + kRows) over one page.
template <size_t kRows, bool kInt4>
HWY_INLINE void PageRows(const AttentionCall& call, const HeadBlock& block,
                         const std::byte* head, const std::byte* next,
                         int32_t page_begin, size_t row,
                         AttentionScratch& scratch, Rows& rows) {
  HWY_ALIGN float s[kRows * kPage];
  const size_t groups = block.groups;
  const size_t stride = scratch.stride();
  int32_t begin[kRows], end[kRows];
  bool active[kRows];
  bool any = false;
  for (size_t r = 0; r < kRows; ++r) {
    begin[r] = std::max(call.begin[row + r] - page_begin, 0);
    end[r] = std::min<int32_t>(call.end[row + r] - page_begin, kPage);
    active[r] = begin[r] < end[r];
    any |= active[r];
  }
  if (!any) return;
  QueryCodes queries[kRows];
  for (size_t r = 0; r < kRows; ++r) queries[r] = scratch.query_codes(row + r);
  CodeScores<kRows, kInt4>(head, block, next, queries, s);
  AdjustScores<kRows>(call, row, page_begin, s);
  const auto* halves = reinterpret_cast<const uint16_t*>(head + block.v_scales);
  const PageScales scales = scratch.page_scales();
  float* acc = scratch.accumulator() + row * stride;
  auto* codes = reinterpret_cast<WeightCode<kInt4>*>(scratch.weight_codes());
  float* units = scratch.weight_units();
  PageWeights<kRows> weights;
  WeighPage<kRows, kInt4>(begin, end, active, row, rows, scratch,
                          (1 + groups) * kSumLanes, s, weights);
  int32_t loaded_begin = -1, loaded_end = -1;
  for (size_t r = 0; r < kRows; ++r) {
    auto* row_codes = codes + r * groups * kPage;
    active[r] = active[r] && weights.largest[r] >= kNoWeight;
    if (!active[r]) {
      std::memset(row_codes, 0, groups * kPage * sizeof(*row_codes));
      continue;
    }
    if (begin[r] != loaded_begin || end[r] != loaded_end) {
      LoadScales(halves, groups, begin[r], end[r], scales);
      loaded_begin = begin[r];
      loaded_end = end[r];
    }
    RoundWeights<kInt4>(s + r * kPage, weights.largest[r], weights.factor[r],
                        scales, groups, row_codes, units + r * groups,
                        scratch.sums(row + r) + kSumLanes);
  }
  AddValues<kRows, kInt4>(head, block, next, codes, units, active, acc, stride);
}

// Writes row r's result from its accumulators and sums.
template <bool kInt4>
HWY_INLINE void WriteRow(const AttentionCall& call, const HeadBlock& block,
                         size_t r, AttentionScratch& scratch) {
  const DF d;
  const size_t lanes = hn::Lanes(d);
  const size_t head_dim = block.head_dim;
  const size_t row_bytes = block.v_row_bytes;
  const float* acc = scratch.accumulator() + r * scratch.stride();
  const float* sums = scratch.sums(r);
  float* x = scratch.ordered();
  for (size_t b = 0; b < row_bytes; ++b) {
    const size_t base = b / (2 * lanes) * (2 * lanes);
    const size_t slot = b % 2 * lanes + (b - base) / 2;
    if constexpr (kInt4) {
      const size_t first = b / 16 * 32;
      const size_t half = (std::min<size_t>(32, head_dim - first) + 1) / 2;
      x[first + b % 16] = acc[2 * base + slot];
      x[first + b % 16 + half] = acc[2 * base + 2 * lanes + slot];
    } else {
      x[b] = acc[base + slot];
    }
  }
  const VF sum = hn::SumOfLanes(d, LoadWide(sums));
  ForEachVector(head_dim, [&](size_t i, size_t count) HWY_ATTR {
    const float* minima = sums + (1 + i / kKvGroup) * kSumLanes;
    const VF base = hn::SumOfLanes(d, LoadWide(minima));
    const VF value = hn::Div(hn::Add(LoadWide(x + i), base), sum);
    StorePartAs(call.out_dtype, value, call.out[r], i, count);
  });
}

template <bool kInt4>
HWY_INLINE void AttendAs(const AttentionCall& call, AttentionScratch& scratch) {
  const HeadBlock block(KvLayout{1, 1, call.head_dim, call.format});
  const size_t rows = call.rows;
  const size_t stride = scratch.stride();
  Rows state;
  int32_t first = call.begin[0];
  int32_t last = call.end[0];
  for (size_t r = 0; r < rows; ++r) {
    first = std::min(first, call.begin[r]);
    last = std::max(last, call.end[r]);
    std::memset(scratch.accumulator() + r * stride, 0, stride * sizeof(float));
    std::memset(scratch.sums(r), 0,
                (1 + block.groups) * kSumLanes * sizeof(float));
    BeginRow(call, r, &state.max[r], scratch.sums(r));
    RoundQuery<kInt4>(scratch.query(r), block.head_dim, scratch.query_codes(r));
  }
  for (int32_t page = first / kPageTokens; page * kPageTokens < last; ++page) {
    const std::byte* head = call.head + call.pages[page] * call.page_stride;
    const std::byte* next = nullptr;
    // Many rows compute for long enough to hide the memory's latency.
    if (rows <= kGroup) {
      next = (page + 1) * kPageTokens < last
                 ? call.head + call.pages[page + 1] * call.page_stride
                 : call.next;
    }
    const int32_t begin = page * kPageTokens;
    size_t r = 0;
    for (; r + kGroup <= rows; r += kGroup) {
      PageRows<kGroup, kInt4>(call, block, head, r == 0 ? next : nullptr, begin,
                              r, scratch, state);
    }
    for (; r + 2 <= rows; r += 2) {
      PageRows<2, kInt4>(call, block, head, r == 0 ? next : nullptr, begin, r,
                         scratch, state);
    }
    if (r < rows) {
      PageRows<1, kInt4>(call, block, head, r == 0 ? next : nullptr, begin, r,
                         scratch, state);
    }
  }
  for (size_t r = 0; r < rows; ++r) WriteRow<kInt4>(call, block, r, scratch);
}

}  // namespace

void AttendQuantizedImpl(const AttentionCall& call, AttentionScratch& scratch) {
  if (call.format == KvFormat::kInt8) {
    AttendAs<false>(call, scratch);
  } else {
    AttendAs<true>(call, scratch);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace sluice
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice {

HWY_EXPORT(AttendQuantizedImpl);

void AttendQuantized(const AttentionCall& call, AttentionScratch& scratch) {
  HWY_DYNAMIC_DISPATCH(AttendQuantizedImpl)(call, scratch);
}

}  // namespace sluice
#endif  // HWY_ONCE
