#include "runtime/kernels/cpu/vector_ops.h"

#include <cmath>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/kernels/cpu/vector_ops.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h:
#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"
#include "runtime/quant/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sluice {
namespace HWY_NAMESPACE {

// Returns 1 / (1 + exp(-x)).
HWY_INLINE VF Sigmoid(VF x) {
  const DF d;
  // hn::Exp is infinite from 89 on and undefined from 104 on.
  const VF e = hn::Exp(d, hn::Min(hn::Neg(x), hn::Set(d, 100.0f)));
  return hn::Div(hn::Set(d, 1.0f), hn::Add(hn::Set(d, 1.0f), e));
}

// Returns the error function as x * P(x^2) / Q(x^2) on [-3.832..., 3.832...],
// beyond which it rounds to 1: the rational approximation of Eigen and XLA,
// with an error of a few units in the last place.
HWY_INLINE VF Erf(VF x) {
  const DF d;
  const VF limit = hn::Set(d, 3.832506856900711f);
  const VF c = hn::Max(hn::Neg(limit), hn::Min(x, limit));
  const VF z = hn::Mul(c, c);
  VF p = hn::Set(d, 0.00022905065861350646f);
  p = hn::MulAdd(p, z, hn::Set(d, 0.0034082910107109506f));
  p = hn::MulAdd(p, z, hn::Set(d, 0.050955695062380861f));
  p = hn::MulAdd(p, z, hn::Set(d, 0.18520832239976145f));
  p = hn::MulAdd(p, z, hn::Set(d, 1.128379143519084f));
  VF q = hn::Set(d, -1.1791602954361697e-7f);
  q = hn::MulAdd(q, z, hn::Set(d, 0.000023547966471313185f));
  q = hn::MulAdd(q, z, hn::Set(d, 0.0010179625278914885f));
  q = hn::MulAdd(q, z, hn::Set(d, 0.014070470171167667f));
  q = hn::MulAdd(q, z, hn::Set(d, 0.11098505178285362f));
  q = hn::MulAdd(q, z, hn::Set(d, 0.49746925110067538f));
  q = hn::MulAdd(q, z, hn::Set(d, 1.0f));
  return hn::Div(hn::Mul(c, p), q);
}

template <Activation kActivation>
HWY_INLINE VF Activate(VF x) {
  const DF d;
  if constexpr (kActivation == Activation::kSilu) {
    return hn::Mul(x, Sigmoid(x));
  } else if constexpr (kActivation == Activation::kGelu) {
    const VF e = Erf(hn::Mul(x, hn::Set(d, 0.70710678118654752f)));
    return hn::Mul(hn::Mul(hn::Set(d, 0.5f), x), hn::Add(hn::Set(d, 1.0f), e));
  } else if constexpr (kActivation == Activation::kGeluTanh) {
    // 0.5 x (1 + tanh(u)) = x sigmoid(2u) with
    // u = sqrt(2 / pi) (x + 0.044715 x^3).
    const VF x3 = hn::Mul(hn::Mul(x, x), x);
    const VF inner = hn::MulAdd(hn::Set(d, 0.044715f), x3, x);
    return hn::Mul(
        x, Sigmoid(hn::Mul(hn::Set(d, 2 * 0.79788456080286536f), inner)));
  } else {
    // NaN stays NaN: the comparison is false for it.
    return hn::IfThenElse(hn::Lt(x, hn::Zero(d)), hn::Zero(d), x);
  }
}

// If gated, `tile`'s rows are `n` gate columns, then `n` up columns.
template <Activation kActivation, bool kGated, typename T>
HWY_INLINE void ActivationLoop(const float* tile, size_t rows, size_t n,
                               const float* bias, T* out, size_t stride) {
  for (size_t row = 0; row < rows; ++row) {
    const float* gate = tile + row * n * (kGated ? 2 : 1);
    T* to = out + row * stride;
    ForEachVector(n, [&](size_t i, size_t count) HWY_ATTR {
      VF g = LoadPart(gate + i, count);
      if (bias != nullptr) g = hn::Add(g, LoadPart(bias + i, count));
      VF v = Activate<kActivation>(g);
      if constexpr (kGated) {
        VF u = LoadPart(gate + n + i, count);
        if (bias != nullptr) u = hn::Add(u, LoadPart(bias + n + i, count));
        v = hn::Mul(v, u);
      }
      StorePart(v, to + i, count);
    });
  }
}

template <bool kGated, typename T>
HWY_INLINE void ActivationOf(Activation activation, const float* tile,
                             size_t rows, size_t n, const float* bias, T* out,
                             size_t stride) {
  switch (activation) {
    case Activation::kSilu:
      return ActivationLoop<Activation::kSilu, kGated>(tile, rows, n, bias, out,
                                                       stride);
    case Activation::kGelu:
      return ActivationLoop<Activation::kGelu, kGated>(tile, rows, n, bias, out,
                                                       stride);
    case Activation::kGeluTanh:
      return ActivationLoop<Activation::kGeluTanh, kGated>(tile, rows, n, bias,
                                                           out, stride);
    case Activation::kRelu:
      return ActivationLoop<Activation::kRelu, kGated>(tile, rows, n, bias, out,
                                                       stride);
  }
}

void GatedTileImpl(Activation activation, const float* tile, size_t rows,
                   size_t cols, const float* bias, DType dtype, void* out,
                   size_t stride) {
  if (dtype == DType::kFloat32) {
    ActivationOf<true>(activation, tile, rows, cols / 2, bias,
                       static_cast<float*>(out), stride);
  } else {
    ActivationOf<true>(activation, tile, rows, cols / 2, bias,
                       static_cast<uint16_t*>(out), stride);
  }
}

template <typename T>
HWY_INLINE void ClampedLoop(const ClampedGate& gate, const float* tile,
                            size_t rows, size_t n, const float* bias, T* out,
                            size_t stride) {
  const DF d;
  const float limit =
      gate.limit > 0 ? gate.limit : std::numeric_limits<float>::infinity();
  const VF most = hn::Set(d, limit);
  const VF least = hn::Set(d, -limit);
  const VF slope = hn::Set(d, gate.slope);
  const VF offset = hn::Set(d, gate.up_offset);
  // Comparisons are false for NaN, which stays.
  const auto at_most = [&](VF x) HWY_ATTR {
    return hn::IfThenElse(hn::Gt(x, most), most, x);
  };
  for (size_t row = 0; row < rows; ++row) {
    const float* from = tile + row * 2 * n;
    T* to = out + row * stride;
    ForEachVector(n, [&](size_t i, size_t count) HWY_ATTR {
      VF g = LoadPart(from + i, count);
      VF u = LoadPart(from + n + i, count);
      if (bias != nullptr) {
        g = hn::Add(g, LoadPart(bias + i, count));
        u = hn::Add(u, LoadPart(bias + n + i, count));
      }
      g = at_most(g);
      u = at_most(u);
      u = hn::IfThenElse(hn::Lt(u, least), least, u);
      const VF glu = hn::Mul(g, Sigmoid(hn::Mul(slope, g)));
      StorePart(hn::Mul(glu, hn::Add(u, offset)), to + i, count);
    });
  }
}

void ClampedTileImpl(const ClampedGate& gate, const float* tile, size_t rows,
                     size_t cols, const float* bias, DType dtype, void* out,
                     size_t stride) {
  if (dtype == DType::kFloat32) {
    ClampedLoop(gate, tile, rows, cols / 2, bias, static_cast<float*>(out),
                stride);
  } else {
    ClampedLoop(gate, tile, rows, cols / 2, bias, static_cast<uint16_t*>(out),
                stride);
  }
}

void PlainTileImpl(Activation activation, const float* tile, size_t rows,
                   size_t cols, const float* bias, DType dtype, void* out,
                   size_t stride) {
  if (dtype == DType::kFloat32) {
    ActivationOf<false>(activation, tile, rows, cols, bias,
                        static_cast<float*>(out), stride);
  } else {
    ActivationOf<false>(activation, tile, rows, cols, bias,
                        static_cast<uint16_t*>(out), stride);
  }
}

// Sums f(vector) over a row.
template <typename F>
HWY_INLINE float SumRow(const float* x, size_t n, const F& f) {
  const DF d;
  const size_t lanes = hn::Lanes(d);
  VF s0 = hn::Zero(d), s1 = s0, s2 = s0, s3 = s0;
  size_t i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    s0 = hn::Add(s0, f(LoadWide(x + i), lanes));
    s1 = hn::Add(s1, f(LoadWide(x + i + lanes), lanes));
    s2 = hn::Add(s2, f(LoadWide(x + i + 2 * lanes), lanes));
    s3 = hn::Add(s3, f(LoadWide(x + i + 3 * lanes), lanes));
  }
  for (; i < n; i += lanes) {
    const size_t count = HWY_MIN(lanes, n - i);
    s0 = hn::Add(s0, f(LoadPart(x + i, count), count));
  }
  return hn::GetLane(
      hn::SumOfLanes(d, hn::Add(hn::Add(s0, s1), hn::Add(s2, s3))));
}

template <typename T>
HWY_INLINE void NormStore(const float* x, const float* weight,
                          const float* bias, size_t n, float mean, float factor,
                          T* out) {
  const DF d;
  const VF m = hn::Set(d, mean);
  const VF f = hn::Set(d, factor);
  ForEachVector(n, [&](size_t i, size_t count) HWY_ATTR {
    VF v = hn::Mul(hn::Sub(LoadPart(x + i, count), m), f);
    if (weight != nullptr) v = hn::Mul(v, LoadPart(weight + i, count));
    if (bias != nullptr) v = hn::Add(v, LoadPart(bias + i, count));
    StorePart(v, out + i, count);
  });
}

float SumOfSquaresImpl(const float* x, size_t n) {
  return SumRow(x, n, [](VF v, size_t) HWY_ATTR { return hn::Mul(v, v); });
}

void ScaleRowImpl(const float* x, const float* weight, size_t n, float factor,
                  float* out) {
  NormStore(x, weight, nullptr, n, 0.0f, factor, out);
}

void CapRowImpl(float cap, size_t n, float* x) {
  const DF d;
  const VF most = hn::Set(d, cap);
  const VF share = hn::Set(d, 1 / cap);
  ForEachVector(n, [&](size_t i, size_t count) HWY_ATTR {
    const VF v = hn::Mul(LoadPart(x + i, count), share);
    StorePart(hn::Mul(most, hn::Tanh(d, v)), x + i, count);
  });
}

void RmsNormImpl(const float* x, const float* weight, size_t n, float eps,
                 DType dtype, void* out) {
  const float sum = SumOfSquaresImpl(x, n);
  const float factor = 1.0f / std::sqrt(sum / static_cast<float>(n) + eps);
  if (dtype == DType::kFloat32) {
    NormStore(x, weight, nullptr, n, 0.0f, factor, static_cast<float*>(out));
  } else {
    NormStore(x, weight, nullptr, n, 0.0f, factor, static_cast<uint16_t*>(out));
  }
}

void LayerNormImpl(const float* x, const float* weight, const float* bias,
                   size_t n, float eps, DType dtype, void* out) {
  const DF d;
  const float mean = SumRow(x, n, [](VF v, size_t) HWY_ATTR { return v; }) /
                     static_cast<float>(n);
  const VF m = hn::Set(d, mean);
  const float variance =
      SumRow(x, n,
             [&](VF v, size_t count) HWY_ATTR {
               const VF delta = hn::Sub(v, m);
               const VF square = hn::Mul(delta, delta);
               // Lanes past the end are zero, not the mean.
               return hn::IfThenElseZero(hn::FirstN(d, count), square);
             }) /
      static_cast<float>(n);
  const float factor = 1.0f / std::sqrt(variance + eps);
  if (dtype == DType::kFloat32) {
    NormStore(x, weight, bias, n, mean, factor, static_cast<float*>(out));
  } else {
    NormStore(x, weight, bias, n, mean, factor, static_cast<uint16_t*>(out));
  }
}

template <bool kAdd>
HWY_INLINE void MoveTile(const float* tile, size_t rows, size_t cols,
                         const float* bias, float* out, size_t stride) {
  for (size_t row = 0; row < rows; ++row) {
    const float* from = tile + row * cols;
    float* to = out + row * stride;
    ForEachVector(cols, [&](size_t i, size_t count) HWY_ATTR {
      VF v = LoadPart(from + i, count);
      if (bias != nullptr) v = hn::Add(v, LoadPart(bias + i, count));
      if constexpr (kAdd) v = hn::Add(LoadPart(to + i, count), v);
      StorePart(v, to + i, count);
    });
  }
}

void AddTileImpl(const float* tile, size_t rows, size_t cols, const float* bias,
                 float* out, size_t stride) {
  MoveTile<true>(tile, rows, cols, bias, out, stride);
}

void StoreTileImpl(const float* tile, size_t rows, size_t cols,
                   const float* bias, float* out, size_t stride) {
  MoveTile<false>(tile, rows, cols, bias, out, stride);
}

void AddRowImpl(float* out, const float* y, size_t n) {
  MoveTile<true>(y, 1, n, nullptr, out, n);
}

void AddBf16RowImpl(float* out, const uint16_t* y, size_t n) {
  ForEachVector(n, [&](size_t i, size_t count) HWY_ATTR {
    StorePart(hn::Add(LoadPart(out + i, count), LoadPart(y + i, count)),
              out + i, count);
  });
}

void RotateHeadImpl(const float* x, const float* cos, const float* sin,
                    size_t half, size_t n, float scale, float* out) {
  const DF d;
  const VF vscale = hn::Set(d, scale);
  ForEachVector(half, [&](size_t i, size_t count) HWY_ATTR {
    const VF a = LoadPart(x + i, count);
    const VF b = LoadPart(x + half + i, count);
    const VF c = LoadPart(cos + i, count);
    const VF s = LoadPart(sin + i, count);
    StorePart(hn::Mul(hn::Sub(hn::Mul(a, c), hn::Mul(b, s)), vscale), out + i,
              count);
    StorePart(hn::Mul(hn::Add(hn::Mul(b, c), hn::Mul(a, s)), vscale),
              out + half + i, count);
  });
  ForEachVector(n - 2 * half, [&](size_t i, size_t count) HWY_ATTR {
    StorePart(hn::Mul(LoadPart(x + 2 * half + i, count), vscale),
              out + 2 * half + i, count);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace sluice
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice {

HWY_EXPORT(GatedTileImpl);
HWY_EXPORT(ClampedTileImpl);
HWY_EXPORT(PlainTileImpl);
HWY_EXPORT(AddTileImpl);
HWY_EXPORT(StoreTileImpl);
HWY_EXPORT(RmsNormImpl);
HWY_EXPORT(LayerNormImpl);
HWY_EXPORT(SumOfSquaresImpl);
HWY_EXPORT(ScaleRowImpl);
HWY_EXPORT(CapRowImpl);
HWY_EXPORT(AddRowImpl);
HWY_EXPORT(AddBf16RowImpl);
HWY_EXPORT(RotateHeadImpl);

void RmsNorm(const float* x, const float* weight, int32_t n, float eps,
             DType dtype, void* out) {
  HWY_DYNAMIC_DISPATCH(RmsNormImpl)(x, weight, n, eps, dtype, out);
}

void LayerNorm(const float* x, const float* weight, const float* bias,
               int32_t n, float eps, DType dtype, void* out) {
  HWY_DYNAMIC_DISPATCH(LayerNormImpl)(x, weight, bias, n, eps, dtype, out);
}

void GatedTile(Activation activation, const float* tile, int32_t rows,
               int32_t cols, const float* bias, DType dtype, void* out,
               int64_t stride) {
  HWY_DYNAMIC_DISPATCH(GatedTileImpl)
  (activation, tile, rows, cols, bias, dtype, out, stride);
}

void ClampedTile(const ClampedGate& gate, const float* tile, int32_t rows,
                 int32_t cols, const float* bias, DType dtype, void* out,
                 int64_t stride) {
  HWY_DYNAMIC_DISPATCH(ClampedTileImpl)
  (gate, tile, rows, cols, bias, dtype, out, stride);
}

void PlainTile(Activation activation, const float* tile, int32_t rows,
               int32_t cols, const float* bias, DType dtype, void* out,
               int64_t stride) {
  HWY_DYNAMIC_DISPATCH(PlainTileImpl)
  (activation, tile, rows, cols, bias, dtype, out, stride);
}

void AddTile(const float* tile, int32_t rows, int32_t cols, const float* bias,
             float* out, int64_t stride) {
  HWY_DYNAMIC_DISPATCH(AddTileImpl)(tile, rows, cols, bias, out, stride);
}

void StoreTile(const float* tile, int32_t rows, int32_t cols, const float* bias,
               float* out, int64_t stride) {
  HWY_DYNAMIC_DISPATCH(StoreTileImpl)(tile, rows, cols, bias, out, stride);
}

float SumOfSquares(const float* x, int32_t n) {
  return HWY_DYNAMIC_DISPATCH(SumOfSquaresImpl)(x, n);
}

void ScaleRow(const float* x, const float* weight, int32_t n, float factor,
              float* out) {
  HWY_DYNAMIC_DISPATCH(ScaleRowImpl)(x, weight, n, factor, out);
}

void CapRow(float cap, int32_t n, float* x) {
  HWY_DYNAMIC_DISPATCH(CapRowImpl)(cap, n, x);
}

void AddRow(float* out, const float* y, int32_t n) {
  HWY_DYNAMIC_DISPATCH(AddRowImpl)(out, y, n);
}

void AddBf16Row(float* out, const uint16_t* y, int32_t n) {
  HWY_DYNAMIC_DISPATCH(AddBf16RowImpl)(out, y, n);
}

void AddRowOf(DType dtype, const void* y, int32_t n, float* out) {
  switch (dtype) {
    case DType::kFloat32:
      return AddRow(out, static_cast<const float*>(y), n);
    case DType::kBFloat16:
      return AddBf16Row(out, static_cast<const uint16_t*>(y), n);
    case DType::kFloat16:
      for (int32_t i = 0; i < n; ++i) {
        out[i] += Float16ToFloat(static_cast<const uint16_t*>(y)[i]);
      }
      return;
  }
}

void RotateHead(const float* x, const float* cos, const float* sin,
                int32_t half, int32_t n, float scale, float* out) {
  HWY_DYNAMIC_DISPATCH(RotateHeadImpl)(x, cos, sin, half, n, scale, out);
}

}  // namespace sluice
#endif  // HWY_ONCE
