#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "common/float16.h"
#include "runtime/kernels/cpu/attention.h"
#include "runtime/quant/convert_floats.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/kernels/cpu/kv_store.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h:
#include "hwy/highway.h"
#include "runtime/quant/simd-inl.h"

// This part is compiled per target: the codes of one group.

HWY_BEFORE_NAMESPACE();
namespace sluice {
namespace HWY_NAMESPACE {

// Writes the codes of x[0, n), n <= kKvGroup, as StoreKv defines them.
void QuantizeGroupImpl(const float* HWY_RESTRICT x, size_t n, float levels,
                       uint8_t* HWY_RESTRICT codes, uint16_t* scale,
                       uint16_t* minimum) {
  const DF d;
  const size_t lanes = hn::Lanes(d);
  // The group in whole vectors, filled up with one of its elements.
  HWY_ALIGN float padded[kKvGroup + kMaxLanes];
  std::memcpy(padded, x, n * sizeof(float));
  for (size_t i = n; i < n + lanes; ++i) padded[i] = x[0];
  const VF zero = hn::Zero(d);
  VF low = hn::Load(d, padded);
  VF high = low;
  VF odd = zero;  // NaN if an element is NaN or infinite
  for (size_t i = 0; i < n; i += lanes) {
    const VF v = hn::Load(d, padded + i);
    low = hn::Min(low, v);
    high = hn::Max(high, v);
    odd = hn::Add(odd, hn::Mul(v, zero));
  }
  // The sum makes a negative zero positive.
  *minimum = FloatToFloat16(hn::GetLane(hn::MinOfLanes(d, low)) + 0.0f);
  const float m = Float16ToFloat(*minimum);
  const float range = hn::GetLane(hn::MaxOfLanes(d, high)) - m;
  *scale = FloatToFloat16((range > 0 ? range : 0.0f) / levels);
  const float s = Float16ToFloat(*scale);
  if (std::isnan(hn::GetLane(hn::SumOfLanes(d, odd))) || !std::isfinite(m) ||
      !std::isfinite(s)) {
    *minimum = FloatToFloat16(std::numeric_limits<float>::quiet_NaN());
    *scale = 0;
    std::memset(codes, 0, n);
    return;
  }
  if (s == 0) {
    std::memset(codes, 0, n);
    return;
  }
  const hn::Rebind<uint8_t, DF> du8;
  HWY_ALIGN uint8_t out[kKvGroup + kMaxLanes];
  for (size_t i = 0; i < n; i += lanes) {
    const VF v =
        hn::Div(hn::Sub(hn::Load(d, padded + i), hn::Set(d, m)), hn::Set(d, s));
    const VF limited = hn::Min(hn::Max(v, zero), hn::Set(d, levels));
    hn::StoreU(hn::DemoteTo(du8, hn::NearestInt(limited)), du8, out + i);
  }
  std::memcpy(codes, out, n);
}

}  // namespace HWY_NAMESPACE
}  // namespace sluice
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice {

HWY_EXPORT(QuantizeGroupImpl);

namespace {

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

void Narrow(const float* x, int32_t n, uint16_t* out) {
  FloatToBf16(x, n, out);
}
void Narrow(const float* x, int32_t n, Float16* out) {
  for (int32_t i = 0; i < n; ++i) out[i].bits = FloatToFloat16(x[i]);
}

// T is uint16_t, which is a bfloat16, or Float16.
template <typename T>
void Transpose(const float* rows, int32_t stride, int32_t count,
               int32_t head_dim, T* out) {
  T narrow[kConvertFloats];
  for (int32_t first = 0; first < head_dim;
       first += kConvertFloats / kPageTokens) {
    const int32_t width =
        std::min(kConvertFloats / kPageTokens, head_dim - first);
    for (int32_t j = 0; j < count; ++j) {
      Narrow(rows + j * stride + first, width, narrow + j * width);
    }
    for (int32_t i = 0; i < width; ++i) {
      T* to = out + (first + i) * kPageTokens;
      for (int32_t j = 0; j < count; ++j) to[j] = narrow[j * width + i];
    }
  }
}

void CopyRow(const float* row, int32_t n, float* out) {
  std::memcpy(out, row, n * sizeof(float));
}
template <typename T>
void CopyRow(const float* row, int32_t n, T* out) {
  Narrow(row, n, out);
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

// Writes codes of the elements [begin, begin + n) of a position to `codes`;
// their scale and minimum to the group's place behind `scales`.
void QuantizePart(const float* x, int32_t begin, int32_t n, int32_t slot,
                  bool int4, uint8_t* codes, std::byte* scales) {
  auto* scale = reinterpret_cast<uint16_t*>(scales) +
                begin / kKvGroup * 2 * kPageTokens + slot;
  HWY_DYNAMIC_DISPATCH(QuantizeGroupImpl)
  (x + begin, n, int4 ? 15.0f : 255.0f, codes, scale, scale + kPageTokens);
}

// Stores four codes of one position's K.
void StoreFour(const uint8_t* codes, int32_t four, int32_t slot, bool int4,
               std::byte* k) {
  if (!int4) {
    std::memcpy(k + (four * kPageTokens + slot) * 4, codes, 4);
    return;
  }
  constexpr int32_t kHalf = kPageTokens / 2;
  std::byte* to = k + (four * kHalf + slot % kHalf) * 4;
  uint32_t now, with;
  std::memcpy(&now, to, 4);
  std::memcpy(&with, codes, 4);
  now = slot < kHalf ? (now & 0xf0f0f0f0u) | with
                     : (now & 0x0f0f0f0fu) | with << 4;
  std::memcpy(to, &now, 4);
}

// Stores codes [begin, begin + n) of one position's V.
void StoreRowPart(const uint8_t* codes, int32_t begin, int32_t n, bool int4,
                  std::byte* row) {
  if (!int4) {
    std::memcpy(row + begin, codes, n);
    return;
  }
  for (int32_t first = 0; first < n; first += 32) {
    const int32_t width = std::min(32, n - first);
    const int32_t half = (width + 1) / 2;
    for (int32_t b = 0; b < half; ++b) {
      const int32_t high = b + half < width ? codes[first + b + half] : 0;
      row[(begin + first) / 2 + b] =
          static_cast<std::byte>(codes[first + b] | high << 4);
    }
  }
}

void StoreQuantized(const float* k_rows, int32_t k_stride, const float* v_rows,
                    int32_t v_stride, int32_t slot, int32_t count,
                    const KvLayout& layout, std::byte* head) {
  const int32_t head_dim = layout.head_dim;
  const bool int4 = layout.format == KvFormat::kInt4;
  std::byte* k_scales = head + layout.k_scales_offset();
  std::byte* v = head + layout.v_offset();
  std::byte* v_scales = head + layout.v_scales_offset();
  for (int32_t j = 0; j < count; ++j) {
    const float* k_row = k_rows + int64_t{j} * k_stride;
    const float* v_row = v_rows + int64_t{j} * v_stride;
    std::byte* v_codes = v + (slot + j) * layout.v_row_bytes();
    for (int32_t begin = 0; begin < head_dim; begin += kKvGroup) {
      const int32_t n = std::min(kKvGroup, head_dim - begin);
      uint8_t codes[kKvGroup] = {};
      QuantizePart(k_row, begin, n, slot + j, int4, codes, k_scales);
      for (int32_t i = 0; i < n; i += 4) {
        StoreFour(codes + i, (begin + i) / 4, slot + j, int4, head);
      }
      QuantizePart(v_row, begin, n, slot + j, int4, codes, v_scales);
      StoreRowPart(codes, begin, n, int4, v_codes);
    }
  }
}

}  // namespace

void StoreKv(const float* k_rows, int32_t k_stride, const float* v_rows,
             int32_t v_stride, int32_t slot, int32_t count, int32_t head_dim,
             KvFormat format, std::byte* head) {
  const KvLayout layout{1, 1, head_dim, format};
  if (layout.quantized()) {
    StoreQuantized(k_rows, k_stride, v_rows, v_stride, slot, count, layout,
                   head);
    return;
  }
  std::byte* v = head + layout.v_offset();
  if (format == KvFormat::kFloat32) {
    StoreKvAs(k_rows, k_stride, v_rows, v_stride, slot, count, head_dim,
              reinterpret_cast<float*>(head), reinterpret_cast<float*>(v));
  } else if (format == KvFormat::kBFloat16) {
    StoreKvAs(k_rows, k_stride, v_rows, v_stride, slot, count, head_dim,
              reinterpret_cast<uint16_t*>(head),
              reinterpret_cast<uint16_t*>(v));
  } else {
    StoreKvAs(k_rows, k_stride, v_rows, v_stride, slot, count, head_dim,
              reinterpret_cast<Float16*>(head), reinterpret_cast<Float16*>(v));
  }
}

}  // namespace sluice
#endif  // HWY_ONCE
