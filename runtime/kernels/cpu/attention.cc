#include "runtime/kernels/cpu/attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "runtime/kernels/cpu/attention_parts.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/kernels/cpu/attention.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h:
#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"
#include "runtime/kernels/cpu/attention_scores-inl.h"
#include "runtime/quant/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sluice {
namespace HWY_NAMESPACE {

// acc[r][i] += sum over j in [begin, end) of p[r][j] * v[j][i], j in order.
// Reads whole vectors of V, past head_dim; those lanes are never looked at.
// Prefetches the next page's V, unless null.
template <size_t kRows, size_t kVectors, typename T>
HWY_INLINE void AccumulateBlock(const T* HWY_RESTRICT v, size_t head_dim,
                                const float* HWY_RESTRICT p, size_t begin,
                                size_t end, const std::byte* next_v,
                                float* HWY_RESTRICT acc, size_t stride) {
  const DF d;
  const size_t lanes = hn::Lanes(d);
  VF a[kRows][kVectors];
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t c = 0; c < kVectors; ++c) {
      a[r][c] = LoadWide(acc + r * stride + c * lanes);
    }
  }
  const size_t step_bytes = head_dim * sizeof(T);
  for (size_t j = begin; j < end; ++j) {
    if (next_v != nullptr) PrefetchBytes(next_v + j * step_bytes, step_bytes);
    VF value[kVectors];
    for (size_t c = 0; c < kVectors; ++c) {
      value[c] = LoadWide(v + j * head_dim + c * lanes);
    }
    for (size_t r = 0; r < kRows; ++r) {
      const VF pv = hn::Set(d, p[r * kPage + j]);
      for (size_t c = 0; c < kVectors; ++c) {
        a[r][c] = hn::MulAdd(pv, value[c], a[r][c]);
      }
    }
  }
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t c = 0; c < kVectors; ++c) {
      StoreWide(a[r][c], acc + r * stride + c * lanes);
    }
  }
}

template <size_t kRows, typename T>
HWY_INLINE void Accumulate(const T* v, size_t head_dim, const float* p,
                           size_t begin, size_t end, const std::byte* next_v,
                           float* acc, size_t stride) {
  // One row alone has registers for more columns.
  constexpr size_t kVectors = kRows == 1 ? 4 : 2;
  const size_t lanes = hn::Lanes(DF());
  size_t i = 0;
  for (; i + (kVectors - 1) * lanes < head_dim; i += kVectors * lanes) {
    AccumulateBlock<kRows, kVectors>(v + i, head_dim, p, begin, end,
                                     i == 0 ? next_v : nullptr, acc + i,
                                     stride);
  }
  for (; i < head_dim; i += lanes) {
    AccumulateBlock<kRows, 1>(v + i, head_dim, p, begin, end,
                              i == 0 ? next_v : nullptr, acc + i, stride);
  }
}

struct RowState {
  float max[kAttentionRows];
  float sum[kAttentionRows];
};

// Takes a row's scores s of a page, the largest of which is page_max, into its
// running maximum and sum; leaves the weights of the positions in s.
HWY_INLINE void SoftmaxPage(float* HWY_RESTRICT s, float page_max,
                            float* HWY_RESTRICT max, float* HWY_RESTRICT sum,
                            float* HWY_RESTRICT acc, size_t head_dim) {
  const DF d;
  const size_t lanes = hn::Lanes(d);
  constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
  if (page_max > *max) {
    if (*max != kMinusInfinity) {
      const VF factor =
          hn::Exp(d, hn::Sub(hn::Set(d, *max), hn::Set(d, page_max)));
      for (size_t i = 0; i < head_dim; i += lanes) {
        StoreWide(hn::Mul(LoadWide(acc + i), factor), acc + i);
      }
      *sum *= hn::GetLane(factor);
    }
    *max = page_max;
  }
  const VF shift = hn::Set(d, *max);
  VF total = hn::Zero(d);
  for (size_t j = 0; j < kPage; j += lanes) {
    const VF p = hn::Exp(d, hn::Sub(LoadWide(s + j), shift));
    total = hn::Add(total, p);
    StoreWide(p, s + j);
  }
  *sum += hn::GetLane(hn::SumOfLanes(d, total));
}

// Attends rows [row, row + kRows) over one page.
template <size_t kRows, typename T>
HWY_INLINE void PageRows(const AttentionCall& call, const T* k, const T* v,
                         const std::byte* next_k, int32_t page_begin,
                         size_t row, const float* query, float* acc,
                         size_t stride, RowState& state) {
  HWY_ALIGN float s[kRows * kPage];
  const size_t head_dim = call.head_dim;
  int32_t begin[kRows], end[kRows];
  bool all_alike = true;
  bool any = false;
  for (size_t r = 0; r < kRows; ++r) {
    begin[r] = std::max(call.begin[row + r] - page_begin, 0);
    end[r] = std::min<int32_t>(call.end[row + r] - page_begin, kPage);
    any |= begin[r] < end[r];
    all_alike &= begin[r] == begin[0] && end[r] == end[0];
  }
  if (!any) return;
  const std::byte* next_v =
      next_k == nullptr ? nullptr : next_k + head_dim * kPage * sizeof(T);
  Scores<kRows>(k, query + row * stride, stride, head_dim, next_k, s);
  AdjustScores<kRows>(call, row, page_begin, s);
  for (size_t r = 0; r < kRows; ++r) {
    if (begin[r] < end[r]) HideOutOfRange(s + r * kPage, begin[r], end[r]);
  }
  HWY_ALIGN float page_max[kRows];
  RowMaxima<kRows>(s, page_max);
  for (size_t r = 0; r < kRows; ++r) {
    if (begin[r] >= end[r]) continue;
    SoftmaxPage(s + r * kPage, page_max[r], &state.max[row + r],
                &state.sum[row + r], acc + (row + r) * stride, head_dim);
  }
  if (all_alike) {
    Accumulate<kRows>(v, head_dim, s, begin[0], end[0], next_v,
                      acc + row * stride, stride);
    return;
  }
  for (size_t r = 0; r < kRows; ++r) {
    if (begin[r] >= end[r]) continue;
    Accumulate<1>(v, head_dim, s + r * kPage, begin[r], end[r], nullptr,
                  acc + (row + r) * stride, stride);
  }
}

template <typename T>
HWY_INLINE void AttendAs(const AttentionCall& call, const float* query,
                         float* acc, size_t stride) {
  const DF d;
  const size_t rows = call.rows;
  const size_t head_dim = call.head_dim;
  RowState state;
  int32_t first = call.begin[0];
  int32_t last = call.end[0];
  for (size_t r = 0; r < rows; ++r) {
    BeginRow(call, r, &state.max[r], &state.sum[r]);
    first = std::min(first, call.begin[r]);
    last = std::max(last, call.end[r]);
    std::memset(acc + r * stride, 0, stride * sizeof(float));
  }
  const auto* base = call.head;
  for (int32_t page = first / kPageTokens; page * kPageTokens < last; ++page) {
    const T* k =
        reinterpret_cast<const T*>(base + call.pages[page] * call.page_stride);
    const T* v = k + head_dim * kPage;
    const std::byte* next_k = nullptr;
    // Many rows compute for long enough to hide the memory's latency.
    if (rows <= kGroup) {
      next_k = (page + 1) * kPageTokens < last
                   ? base + call.pages[page + 1] * call.page_stride
                   : call.next;
    }
    const int32_t begin = page * kPageTokens;
    size_t r = 0;
    for (; r + kGroup <= rows; r += kGroup) {
      PageRows<kGroup>(call, k, v, r == 0 ? next_k : nullptr, begin, r, query,
                       acc, stride, state);
    }
    for (; r + 2 <= rows; r += 2) {
      PageRows<2>(call, k, v, r == 0 ? next_k : nullptr, begin, r, query, acc,
                  stride, state);
    }
    if (r < rows) {
      PageRows<1>(call, k, v, r == 0 ? next_k : nullptr, begin, r, query, acc,
                  stride, state);
    }
  }
  for (size_t r = 0; r < rows; ++r) {
    const VF sum = hn::Set(d, state.sum[r]);
    ForEachVector(head_dim, [&](size_t i, size_t count) HWY_ATTR {
      const VF x = hn::Div(LoadWide(acc + r * stride + i), sum);
      StorePartAs(call.out_dtype, x, call.out[r], i, count);
    });
  }
}

void AttendImpl(const AttentionCall& call, const float* query, float* acc,
                size_t stride) {
  if (call.format == KvFormat::kFloat32) {
    AttendAs<float>(call, query, acc, stride);
  } else if (call.format == KvFormat::kBFloat16) {
    AttendAs<uint16_t>(call, query, acc, stride);
  } else {
    AttendAs<Float16>(call, query, acc, stride);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace sluice
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice {

HWY_EXPORT(AttendImpl);

void Attend(const AttentionCall& call, AttentionScratch& scratch) {
  if (call.v_bytes_read != nullptr && call.sparsity >= 1) {
    const KvLayout layout{1, 1, call.head_dim, call.format};
    const int32_t first = *std::min_element(call.begin, call.begin + call.rows);
    const int32_t last = *std::max_element(call.end, call.end + call.rows);
    *call.v_bytes_read += (last - first) * layout.v_position_bytes();
  }
  if (call.sparsity < 1) {
    AttendSparse(call, scratch, nullptr);
  } else if (call.format == KvFormat::kInt8 || call.format == KvFormat::kInt4) {
    AttendQuantized(call, scratch);
  } else {
    HWY_DYNAMIC_DISPATCH(AttendImpl)
    (call, scratch.query(0), scratch.accumulator(), scratch.stride());
  }
}

int32_t SparseCount(float sparsity, int32_t context) {
  const float share = std::ceil(sparsity * static_cast<float>(context));
  return std::clamp(static_cast<int32_t>(share), 1, context);
}

}  // namespace sluice
#endif  // HWY_ONCE
