#include "runtime/kernels/cpu/router.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/kernels/cpu/router.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h:
#include "hwy/highway.h"
#include "runtime/quant/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sluice {
namespace HWY_NAMESPACE {

// The products of two rows and four rows of weights, or of fewer, for which a
// row counts again. Each has a sum of its own, in one order.
template <typename T>
HWY_INLINE void Dots(const T* x0, const T* x1, const float* const* w, size_t n,
                     float* out0, float* out1) {
  const DF d;
  VF a0 = hn::Zero(d), a1 = a0, a2 = a0, a3 = a0;
  VF b0 = a0, b1 = a0, b2 = a0, b3 = a0;
  ForEachVector(n, [&](size_t i, size_t count) HWY_ATTR {
    const VF x = LoadPart(x0 + i, count);
    const VF y = LoadPart(x1 + i, count);
    const VF w0 = LoadPart(w[0] + i, count);
    const VF w1 = LoadPart(w[1] + i, count);
    const VF w2 = LoadPart(w[2] + i, count);
    const VF w3 = LoadPart(w[3] + i, count);
    a0 = hn::MulAdd(x, w0, a0);
    a1 = hn::MulAdd(x, w1, a1);
    a2 = hn::MulAdd(x, w2, a2);
    a3 = hn::MulAdd(x, w3, a3);
    b0 = hn::MulAdd(y, w0, b0);
    b1 = hn::MulAdd(y, w1, b1);
    b2 = hn::MulAdd(y, w2, b2);
    b3 = hn::MulAdd(y, w3, b3);
  });
  const auto sum = [&](VF v)
                       HWY_ATTR { return hn::GetLane(hn::SumOfLanes(d, v)); };
  out0[0] = sum(a0), out0[1] = sum(a1), out0[2] = sum(a2), out0[3] = sum(a3);
  out1[0] = sum(b0), out1[1] = sum(b1), out1[2] = sum(b2), out1[3] = sum(b3);
}

template <typename T>
HWY_INLINE void LogitsOf(const T* x, size_t rows, size_t n,
                         const float* weights, const float* bias,
                         size_t outputs, float* out) {
  for (size_t e = 0; e < outputs; e += 4) {
    const float* w[4];
    for (size_t i = 0; i < 4; ++i) {
      w[i] = weights + HWY_MIN(e + i, outputs - 1) * n;
    }
    for (size_t row = 0; row < rows; row += 2) {
      const size_t second = HWY_MIN(row + 1, rows - 1);
      float sums[2][4];
      Dots(x + row * n, x + second * n, w, n, sums[0], sums[1]);
      for (size_t i = 0; i < 4 && e + i < outputs; ++i) {
        const float b = bias == nullptr ? 0.0f : bias[e + i];
        out[row * outputs + e + i] = sums[0][i] + b;
        out[second * outputs + e + i] = sums[second - row][i] + b;
      }
    }
  }
}

void RouterLogitsImpl(DType dtype, const void* x, size_t rows, size_t n,
                      const float* weights, const float* bias, size_t outputs,
                      float* out) {
  if (dtype == DType::kFloat32) {
    LogitsOf(static_cast<const float*>(x), rows, n, weights, bias, outputs,
             out);
  } else {
    LogitsOf(static_cast<const uint16_t*>(x), rows, n, weights, bias, outputs,
             out);
  }
}

void AddWeightedRowImpl(float weight, const float* x, const float* bias,
                        size_t n, float* out) {
  const VF factor = hn::Set(DF(), weight);
  ForEachVector(n, [&](size_t i, size_t count) HWY_ATTR {
    VF v = LoadPart(x + i, count);
    if (bias != nullptr) v = hn::Add(v, LoadPart(bias + i, count));
    v = hn::Add(LoadPart(out + i, count), hn::Mul(factor, v));
    StorePart(v, out + i, count);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace sluice
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice {

HWY_EXPORT(RouterLogitsImpl);
HWY_EXPORT(AddWeightedRowImpl);

void RouterLogits(DType dtype, const void* x, int32_t rows, int64_t n,
                  const float* weights, const float* bias, int32_t outputs,
                  float* out) {
  HWY_DYNAMIC_DISPATCH(RouterLogitsImpl)
  (dtype, x, rows, n, weights, bias, outputs, out);
}

void AddWeightedRow(float weight, const float* x, const float* bias, int32_t n,
                    float* out) {
  HWY_DYNAMIC_DISPATCH(AddWeightedRowImpl)(weight, x, bias, n, out);
}

}  // namespace sluice
#endif  // HWY_ONCE
