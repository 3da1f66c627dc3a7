#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "common/float16.h"
#include "runtime/kernels/cpu/attention.h"
#include "runtime/kernels/cpu/attention_parts.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/kernels/cpu/attention_sparse.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h:
#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"
#include "runtime/kernels/cpu/attention_scores-inl.h"
#include "runtime/quant/simd-inl.h"

// Sparse attention: all scores of a row, then the weights of the largest, then
// their rows of V. The smallest score to keep is found by bisection over the
// floats in their order, counting with whole vectors: no sorting, no copy, and
// what comes out is exact.

HWY_BEFORE_NAMESPACE();
namespace sluice {
namespace HWY_NAMESPACE {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// Maps floats to integers in the same order.
HWY_INLINE int32_t OrderOf(float x) {
  const int32_t bits = std::bit_cast<int32_t>(x);
  return bits ^ (bits >> 31 & 0x7fffffff);
}
HWY_INLINE float FloatAt(int32_t order) {
  return std::bit_cast<float>(order ^ (order >> 31 & 0x7fffffff));
}

// Counts how many of s[0, n), n a number of whole vectors, are at least t.
HWY_INLINE int32_t CountFrom(const float* HWY_RESTRICT s, size_t n, float t) {
  const DF d;
  const DI32 di;
  const VF from = hn::Set(d, t);
  VI32 count = hn::Zero(di);
  for (size_t i = 0; i < n; i += hn::Lanes(d)) {
    const auto in = hn::RebindMask(di, hn::Ge(LoadWide(s + i), from));
    count = hn::Sub(count, hn::VecFromMask(di, in));
  }
  return hn::GetLane(hn::SumOfLanes(di, count));
}

// Writes the positions, ascending, of the `count` largest of s[begin, end), of
// equal ones the first. s has room for whole pages. Puts minus infinity on
// positions out of range, and infinity for NaN, which shows in the result.
HWY_INLINE void KeepLargest(float* HWY_RESTRICT s, size_t begin, size_t end,
                            size_t count, int32_t* HWY_RESTRICT kept) {
  const DF d;
  const size_t lanes = hn::Lanes(d);
  const size_t n = (end + kPage - 1) / kPage * kPage;
  for (size_t j = 0; j < begin; ++j) s[j] = kMinusInfinity;
  for (size_t j = end; j < n; ++j) s[j] = kMinusInfinity;
  VF top = hn::Set(d, kMinusInfinity);
  for (size_t j = 0; j < n; j += lanes) {
    const VF v = LoadWide(s + j);
    const VF number =
        hn::IfThenElse(hn::Eq(v, v), v, hn::Set(d, -kMinusInfinity));
    StoreWide(number, s + j);
    top = hn::Max(top, number);
  }
  // CountFrom(low) >= count > CountFrom(high).
  int64_t low = OrderOf(kMinusInfinity);
  int64_t high = int64_t{OrderOf(hn::GetLane(hn::MaxOfLanes(d, top)))} + 1;
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    const size_t found = CountFrom(s, n, FloatAt(static_cast<int32_t>(middle)));
    if (found < count) {
      high = middle;
      continue;
    }
    low = middle;
    if (found == count) break;
  }
  const float min = FloatAt(static_cast<int32_t>(low));
  const VF min_v = hn::Set(d, min);
  // Positions that equal the least and still fit.
  size_t above = 0;
  for (size_t j = 0; j < n; j += lanes) {
    above += hn::CountTrue(d, hn::Gt(LoadWide(s + j), min_v));
  }
  size_t equal = count - above;
  size_t at = 0;
  for (size_t j = 0; j < n && at < count; j += lanes) {
    uint8_t bytes[8] = {};
    hn::StoreMaskBits(d, hn::Ge(LoadWide(s + j), min_v), bytes);
    uint64_t bits;
    std::memcpy(&bits, bytes, sizeof(bits));
    if (lanes < 8) bits &= (uint64_t{1} << lanes) - 1;
    for (; bits != 0; bits &= bits - 1) {
      const size_t position = j + std::countr_zero(bits);
      if (position < begin || position >= end) continue;
      if (!(s[position] > min)) {
        if (equal == 0) continue;
        --equal;
      }
      kept[at++] = static_cast<int32_t>(position);
    }
  }
}

// Sets the kept positions' weights from a row's scores; returns the sum of all
// weights.
HWY_INLINE float WeighKept(const AttentionCall& call, size_t row,
                           const float* HWY_RESTRICT s,
                           const int32_t* HWY_RESTRICT kept, size_t count,
                           float* HWY_RESTRICT weights) {
  const DF d;
  const size_t lanes = hn::Lanes(d);
  float max, sum;
  BeginRow(call, row, &max, &sum);
  const float sink = max;
  for (size_t i = 0; i < count; ++i) {
    weights[i] = s[kept[i]];
    max = std::max(max, weights[i]);
  }
  for (size_t i = count; i < count + lanes; ++i) weights[i] = kMinusInfinity;
  const VF shift = hn::Set(d, max);
  VF total = hn::Zero(d);
  for (size_t i = 0; i < count; i += lanes) {
    const VF p = hn::Exp(d, hn::Sub(LoadWide(weights + i), shift));
    total = hn::Add(total, p);
    StoreWide(p, weights + i);
  }
  if (sum == 1) sum = hn::GetLane(hn::Exp(d, hn::Set(d, sink - max)));
  return sum + hn::GetLane(hn::SumOfLanes(d, total));
}

// Computes the scores of rows [row, row + kRows) at all positions of pages
// [first_page, last_page).
template <size_t kRows, KvFormat kFormat>
HWY_INLINE void ScorePages(const AttentionCall& call, const HeadBlock& block,
                           size_t row, int32_t first_page, int32_t last_page,
                           AttentionScratch& scratch) {
  HWY_ALIGN float s[kRows * kPage];
  QueryCodes queries[kRows];
  for (size_t r = 0; r < kRows; ++r) queries[r] = scratch.query_codes(row + r);
  for (int32_t page = first_page; page < last_page; ++page) {
    const std::byte* head = call.head + call.pages[page] * call.page_stride;
    const std::byte* next =
        page + 1 < last_page
            ? call.head + call.pages[page + 1] * call.page_stride
            : nullptr;
    const float* query = scratch.query(row);
    if constexpr (kFormat == KvFormat::kFloat32) {
      Scores<kRows>(reinterpret_cast<const float*>(head), query,
                    scratch.stride(), block.head_dim, next, s);
    } else if constexpr (kFormat == KvFormat::kBFloat16) {
      Scores<kRows>(reinterpret_cast<const uint16_t*>(head), query,
                    scratch.stride(), block.head_dim, next, s);
    } else if constexpr (kFormat == KvFormat::kFloat16) {
      Scores<kRows>(reinterpret_cast<const Float16*>(head), query,
                    scratch.stride(), block.head_dim, next, s);
    } else {
      CodeScores<kRows, kFormat == KvFormat::kInt4>(head, block, next, queries,
                                                    s);
    }
    AdjustScores<kRows>(call, row, page * kPageTokens, s);
    const size_t at = static_cast<size_t>(page - first_page) * kPage;
    for (size_t r = 0; r < kRows; ++r) {
      std::memcpy(scratch.scores(r) + at, s + r * kPage, kPage * sizeof(float));
    }
  }
}

// The kept rows of V of one head: position kept[i] counts from page
// first_page.
struct KeptRows {
  const AttentionCall& call;
  const HeadBlock& block;
  int32_t first_page;
  const int32_t* kept;
  size_t count;

  const std::byte* Page(size_t i) const {
    return call.head +
           call.pages[first_page + kept[i] / kPageTokens] * call.page_stride;
  }
  const std::byte* Row(size_t i) const {
    return Page(i) + block.v + kept[i] % kPageTokens * block.v_row_bytes;
  }
};

// Lanes that each vector has at least.
#if HWY_TARGET == HWY_SCALAR
constexpr size_t kMinLanes = 1;
#elif HWY_HAVE_SCALABLE
constexpr size_t kMinLanes = 4;
#else
constexpr size_t kMinLanes = hn::MaxLanes(DF());
#endif

// Rows to ask for in advance.
constexpr size_t kAhead = 8;

// acc[i] = sum of weights[n] * v[n][i], for kVectors vectors of elements from
// `first` on.
template <typename T, size_t kVectors>
HWY_INLINE void AddKeptBlock(const KeptRows& rows, const float* weights,
                             size_t first, float* acc) {
  const DF d;
  const size_t lanes = hn::Lanes(d);
  VF sum[kVectors];
  for (VF& x : sum) x = hn::Zero(d);
  for (size_t n = 0; n < rows.count; ++n) {
    if (n + kAhead < rows.count) {
      PrefetchBytes(rows.Row(n + kAhead) + first * sizeof(T),
                    kVectors * lanes * sizeof(T));
    }
    const T* v = reinterpret_cast<const T*>(rows.Row(n)) + first;
    const VF weight = hn::Set(d, weights[n]);
    for (size_t c = 0; c < kVectors; ++c) {
      sum[c] = hn::MulAdd(weight, LoadWide(v + c * lanes), sum[c]);
    }
  }
  for (size_t c = 0; c < kVectors; ++c) {
    StoreWide(sum[c], acc + first + c * lanes);
  }
}

template <typename T>
HWY_INLINE void AddKept(const KeptRows& rows, const float* weights,
                        float* acc) {
  const size_t lanes = hn::Lanes(DF());
  size_t i = 0;
  for (; i + 3 * lanes < rows.block.head_dim; i += 4 * lanes) {
    AddKeptBlock<T, 4>(rows, weights, i, acc);
  }
  for (; i < rows.block.head_dim; i += lanes) {
    AddKeptBlock<T, 1>(rows, weights, i, acc);
  }
}

// Adds the kept codes; `products`, as long as weights, is overwritten.
template <bool kInt4>
HWY_INLINE void AddKeptCodes(const KeptRows& rows, const float* weights,
                             float* products, float* acc) {
  const DF d;
  const DI32 di;
  const hn::Rebind<uint8_t, DF> du8;
  const size_t lanes = hn::Lanes(d);
  const HeadBlock& block = rows.block;
  const VI32 mask = hn::Set(di, 15);
  // Elements that are done together: of a chunk's low halves, then high ones.
  constexpr size_t kChunk = kInt4 ? 32 : 16;
  constexpr size_t kVectors = (15 + kMinLanes) / kMinLanes;  // of 16 bytes
  for (size_t g = 0; g < block.groups; ++g) {
    float base = 0;
    for (size_t n = 0; n < rows.count; ++n) {
      if (n + kAhead < rows.count) hwy::Prefetch(rows.Row(n + kAhead));
      const auto* scale =
          reinterpret_cast<const uint16_t*>(rows.Page(n) + block.v_scales) +
          g * 2 * kPage + rows.kept[n] % kPageTokens;
      products[n] = weights[n] * Float16ToFloat(scale[0]);
      base += weights[n] * Float16ToFloat(scale[kPage]);
    }
    const size_t end = std::min<size_t>((g + 1) * kKvGroup, block.head_dim);
    for (size_t i = g * kKvGroup; i < end; i += kChunk) {
      const size_t width = std::min(kChunk, end - i);
      const size_t bytes = kInt4 ? (width + 1) / 2 : width;
      const size_t at = kInt4 ? i / 2 : i;
      VF low[kVectors], high[kVectors];
      for (size_t c = 0; c < kVectors; ++c) low[c] = high[c] = hn::Zero(d);
      for (size_t n = 0; n < rows.count; ++n) {
        const auto* codes = reinterpret_cast<const uint8_t*>(rows.Row(n)) + at;
        const VF product = hn::Set(d, products[n]);
        for (size_t c = 0; c < kVectors; ++c) {
          const VI32 both =
              hn::PromoteTo(di, hn::LoadU(du8, codes + c * lanes));
          const VI32 first = kInt4 ? hn::And(both, mask) : both;
          low[c] = hn::MulAdd(product, hn::ConvertTo(d, first), low[c]);
          if constexpr (kInt4) {
            const VI32 second = hn::ShiftRight<4>(both);
            high[c] = hn::MulAdd(product, hn::ConvertTo(d, second), high[c]);
          }
        }
      }
      // The next vector overwrites the lanes of one that are beyond its part.
      const VF base_v = hn::Set(d, base);
      for (size_t c = 0; c < kVectors; ++c) {
        StoreWide(hn::Add(low[c], base_v), acc + i + c * lanes);
      }
      for (size_t c = 0; kInt4 && c < kVectors; ++c) {
        StoreWide(hn::Add(high[c], base_v), acc + i + bytes + c * lanes);
      }
    }
  }
}

// Attends one row, whose scores are in `s`.
template <KvFormat kFormat>
HWY_INLINE void AttendRow(const AttentionCall& call, const HeadBlock& block,
                          size_t row, int32_t first_page, float* s,
                          bool choose_only, AttentionScratch& scratch) {
  const DF d;
  const int32_t origin = first_page * kPageTokens;
  const int32_t count =
      SparseCount(call.sparsity, call.end[row] - call.begin[row]);
  int32_t* kept = scratch.kept();
  KeepLargest(s, call.begin[row] - origin, call.end[row] - origin, count, kept);
  if (choose_only || call.v_bytes_read != nullptr) {
    uint32_t* masks = scratch.masks();
    for (int32_t i = 0; i < count; ++i) {
      masks[kept[i] / kPageTokens] |= uint32_t{1} << kept[i] % kPageTokens;
    }
  }
  if (choose_only) return;
  float* weights = scratch.kept_weights();
  const float sum = WeighKept(call, row, s, kept, count, weights);
  const KeptRows rows{call, block, first_page, kept,
                      static_cast<size_t>(count)};
  float* acc = scratch.ordered();
  if constexpr (kFormat == KvFormat::kFloat32) {
    AddKept<float>(rows, weights, acc);
  } else if constexpr (kFormat == KvFormat::kBFloat16) {
    AddKept<uint16_t>(rows, weights, acc);
  } else if constexpr (kFormat == KvFormat::kFloat16) {
    AddKept<Float16>(rows, weights, acc);
  } else {
    AddKeptCodes<kFormat == KvFormat::kInt4>(rows, weights, s, acc);
  }
  const VF total = hn::Set(d, sum);
  ForEachVector(block.head_dim, [&](size_t i, size_t n) HWY_ATTR {
    const VF value = hn::Div(LoadWide(acc + i), total);
    StorePartAs(call.out_dtype, value, call.out[row], i, n);
  });
}

template <KvFormat kFormat>
HWY_INLINE void AttendAs(const AttentionCall& call, AttentionScratch& scratch,
                         uint32_t* masks) {
  const KvLayout layout{1, 1, call.head_dim, call.format};
  const HeadBlock block(layout);
  const size_t rows = call.rows;
  const int32_t first_page = call.begin[0] / kPageTokens;
  const int32_t last_page = PagesOf(call.end[0]);
  const size_t num_pages = last_page - first_page;
  std::fill_n(scratch.masks(), num_pages, 0u);
  if (layout.quantized()) {
    for (size_t r = 0; r < rows; ++r) {
      RoundQuery<kFormat == KvFormat::kInt4>(scratch.query(r), block.head_dim,
                                             scratch.query_codes(r));
    }
  }
  for (size_t r = 0; r < rows;) {
    size_t together = 1;
    if (r + kGroup <= rows) {
      together = kGroup;
      ScorePages<kGroup, kFormat>(call, block, r, first_page, last_page,
                                  scratch);
    } else if (r + 2 <= rows) {
      together = 2;
      ScorePages<2, kFormat>(call, block, r, first_page, last_page, scratch);
    } else {
      ScorePages<1, kFormat>(call, block, r, first_page, last_page, scratch);
    }
    for (size_t i = 0; i < together; ++i) {
      AttendRow<kFormat>(call, block, r + i, first_page, scratch.scores(i),
                         masks != nullptr, scratch);
    }
    r += together;
  }
  if (masks != nullptr) {
    std::fill_n(masks, call.pages.size(), 0u);
    std::copy_n(scratch.masks(), num_pages, masks + first_page);
  } else if (call.v_bytes_read != nullptr) {
    uint64_t kept = 0;
    for (size_t i = 0; i < num_pages; ++i) {
      kept += std::popcount(scratch.masks()[i]);
    }
    *call.v_bytes_read += kept * layout.v_position_bytes();
  }
}

}  // namespace

void AttendSparseImpl(const AttentionCall& call, AttentionScratch& scratch,
                      uint32_t* masks) {
  switch (call.format) {
    case KvFormat::kFloat32:
      return AttendAs<KvFormat::kFloat32>(call, scratch, masks);
    case KvFormat::kBFloat16:
      return AttendAs<KvFormat::kBFloat16>(call, scratch, masks);
    case KvFormat::kFloat16:
      return AttendAs<KvFormat::kFloat16>(call, scratch, masks);
    case KvFormat::kInt8:
      return AttendAs<KvFormat::kInt8>(call, scratch, masks);
    case KvFormat::kInt4:
      return AttendAs<KvFormat::kInt4>(call, scratch, masks);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace sluice
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice {

HWY_EXPORT(AttendSparseImpl);

void AttendSparse(const AttentionCall& call, AttentionScratch& scratch,
                  uint32_t* masks) {
  HWY_DYNAMIC_DISPATCH(AttendSparseImpl)(call, scratch, masks);
}

}  // namespace sluice
#endif  // HWY_ONCE
