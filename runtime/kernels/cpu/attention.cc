#include "runtime/kernels/cpu/attention.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "runtime/kernels/cpu/vector_ops.h"
#include "runtime/kv/sequence_pages.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/kernels/cpu/attention.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h:
#include "hwy/cache_control.h"
#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"
#include "runtime/kernels/cpu/simd-inl.h"

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

// Takes row r's scores s of a page, of which [begin, end) count, into the
// running maximum and sum; leaves the weights of the positions in s.
HWY_INLINE void SoftmaxPage(float* HWY_RESTRICT s, size_t begin, size_t end,
                            float* HWY_RESTRICT max, float* HWY_RESTRICT sum,
                            float* HWY_RESTRICT acc, size_t head_dim) {
  const DF d;
  const size_t lanes = hn::Lanes(d);
  constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
  for (size_t j = 0; j < begin; ++j) s[j] = kMinusInfinity;
  for (size_t j = end; j < kPage; ++j) s[j] = kMinusInfinity;
  VF top = LoadWide(s);
  for (size_t j = lanes; j < kPage; j += lanes) {
    top = hn::Max(top, LoadWide(s + j));
  }
  const float page_max = hn::GetLane(hn::MaxOfLanes(d, top));
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

// Rows [row, row + kRows) over one page.
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
  for (size_t r = 0; r < kRows; ++r) {
    if (begin[r] >= end[r]) continue;
    SoftmaxPage(s + r * kPage, begin[r], end[r], &state.max[row + r],
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
    state.max[r] = -std::numeric_limits<float>::infinity();
    state.sum[r] = 0;
    first = std::min(first, call.begin[r]);
    last = std::max(last, call.end[r]);
    std::memset(acc + r * stride, 0, stride * sizeof(float));
  }
  const auto* base = static_cast<const std::byte*>(call.k_base);
  for (int32_t page = first / kPageTokens; page * kPageTokens < last; ++page) {
    const T* k =
        reinterpret_cast<const T*>(base + call.pages[page] * call.page_stride);
    const T* v = k + head_dim * kPage;
    const std::byte* next_k = nullptr;
    // Many rows compute for long enough to hide the memory's latency.
    if (rows <= kGroup) {
      next_k = (page + 1) * kPageTokens < last
                   ? base + call.pages[page + 1] * call.page_stride
                   : static_cast<const std::byte*>(call.next_k);
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
      if (call.out_dtype == DType::kFloat32) {
        StorePart(x, static_cast<float*>(call.out[r]) + i, count);
      } else {
        StorePart(x, static_cast<uint16_t*>(call.out[r]) + i, count);
      }
    });
  }
}

void AttendImpl(const AttentionCall& call, const float* query, float* acc,
                size_t stride) {
  if (call.kv_dtype == DType::kFloat32) {
    AttendAs<float>(call, query, acc, stride);
  } else {
    AttendAs<uint16_t>(call, query, acc, stride);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace sluice
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice {

HWY_EXPORT(AttendImpl);

namespace {

// Rows are whole vectors, of any processor.
constexpr int32_t kRowPad = 64;

// Numbers that are converted at once: 64 of each of a page's positions.
constexpr int32_t kConvertFloats = 2048;

void Transpose(const float* rows, int32_t stride, int32_t count,
               int32_t head_dim, float* out) {
  for (int32_t i = 0; i < head_dim; ++i) {
    for (int32_t j = 0; j < count; ++j) {
      out[i * kPageTokens + j] = rows[j * stride + i];
    }
  }
}

void Transpose(const float* rows, int32_t stride, int32_t count,
               int32_t head_dim, uint16_t* out) {
  uint16_t narrow[kConvertFloats];
  for (int32_t first = 0; first < head_dim;
       first += kConvertFloats / kPageTokens) {
    const int32_t width =
        std::min(kConvertFloats / kPageTokens, head_dim - first);
    for (int32_t j = 0; j < count; ++j) {
      FloatToBf16(rows + j * stride + first, width, narrow + j * width);
    }
    for (int32_t i = 0; i < width; ++i) {
      uint16_t* to = out + (first + i) * kPageTokens;
      for (int32_t j = 0; j < count; ++j) to[j] = narrow[j * width + i];
    }
  }
}

void CopyRow(const float* row, int32_t n, float* out) {
  std::memcpy(out, row, n * sizeof(float));
}
void CopyRow(const float* row, int32_t n, uint16_t* out) {
  FloatToBf16(row, n, out);
}

template <typename T>
void StoreKvAs(const float* k_rows, int32_t k_stride, const float* v_rows,
               int32_t v_stride, int32_t slot, int32_t count, int32_t head_dim,
               T* k, T* v) {
  Transpose(k_rows, k_stride, count, head_dim, k + slot);
  for (int32_t j = 0; j < count; ++j) {
    CopyRow(v_rows + j * v_stride, head_dim, v + (slot + j) * head_dim);
  }
}

}  // namespace

AttentionScratch::AttentionScratch(int32_t head_dim)
    : stride_((head_dim + kRowPad - 1) / kRowPad * kRowPad),
      storage_(2 * kAttentionRows * stride_ + 16) {
  auto address = reinterpret_cast<uintptr_t>(storage_.data());
  query_ = storage_.data() + (64 - address % 64) % 64 / sizeof(float);
  accumulator_ = query_ + kAttentionRows * stride_;
}

void Attend(const AttentionCall& call, AttentionScratch& scratch) {
  HWY_DYNAMIC_DISPATCH(AttendImpl)
  (call, scratch.query(0), scratch.accumulator(), scratch.stride());
}

void StoreKv(const float* k_rows, int32_t k_stride, const float* v_rows,
             int32_t v_stride, int32_t slot, int32_t count, int32_t head_dim,
             DType dtype, void* k, void* v) {
  if (dtype == DType::kFloat32) {
    StoreKvAs(k_rows, k_stride, v_rows, v_stride, slot, count, head_dim,
              static_cast<float*>(k), static_cast<float*>(v));
  } else {
    StoreKvAs(k_rows, k_stride, v_rows, v_stride, slot, count, head_dim,
              static_cast<uint16_t*>(k), static_cast<uint16_t*>(v));
  }
}

}  // namespace sluice
#endif  // HWY_ONCE
