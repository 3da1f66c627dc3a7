#include "runtime/kernels/cuda/device/elements.cuh"
#include "runtime/kernels/cuda/device/launch.h"
#include "runtime/kernels/cuda/device/row_grid.h"
#include "runtime/kernels/cuda/rows.h"

namespace sluice {
namespace {

__device__ __forceinline__ float Sigmoid(float x) {
  return 1.0f / (1.0f + expf(-x));
}

__device__ __forceinline__ float Activate(Activation activation, float x) {
  switch (activation) {
    case Activation::kSilu:
      return x * Sigmoid(x);
    case Activation::kGelu:
      return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f));
    case Activation::kGeluTanh:
      // 0.5 x (1 + tanh(u)) = x sigmoid(2u) with
      // u = sqrt(2 / pi) (x + 0.044715 x^3).
      return x *
             Sigmoid(2 * 0.79788456080286536f * (x + 0.044715f * (x * x * x)));
    default:  // kRelu; NaN stays NaN
      return x < 0 ? 0 : x;
  }
}

// Adds `bias`, unless it is null.
template <int kCount>
__device__ __forceinline__ void AddBias(const float* bias, int i,
                                        float (&v)[kCount]) {
  if (bias == nullptr) return;
  float b[kCount];
  LoadFloats(bias + i, b);
#pragma unroll
  for (int j = 0; j < kCount; ++j) v[j] += b[j];
}

// Returns the element at which a thread of a RowGrid begins.
template <int kCount>
__device__ __forceinline__ int Column() {
  return static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x) * kCount;
}

template <bool kGated, int kCount, typename In, typename T>
__global__ void __launch_bounds__(256)
    ActivationKernel(Activation activation, const In* in, const float* bias,
                     int n, T* out) {
  const int i = Column<kCount>();
  if (i >= n) return;
  const In* row = in + static_cast<int64_t>(blockIdx.x) * n * (kGated ? 2 : 1);
  float v[kCount];
  LoadFloats(row + i, v);
  AddBias(bias, i, v);
#pragma unroll
  for (int j = 0; j < kCount; ++j) v[j] = Activate(activation, v[j]);
  if constexpr (kGated) {
    float up[kCount];
    LoadFloats(row + n + i, up);
    AddBias(bias, n + i, up);
#pragma unroll
    for (int j = 0; j < kCount; ++j) v[j] *= up[j];
  }
  StoreFloats(v, out + static_cast<int64_t>(blockIdx.x) * n + i);
}

__global__ void __launch_bounds__(256)
    CapKernel(float cap, int n, int64_t stride, float* x) {
  const int i = Column<1>();
  if (i >= n) return;
  float* const at = x + static_cast<int64_t>(blockIdx.x) * stride + i;
  *at = cap * tanhf(*at / cap);
}

template <int kCount, typename T>
__global__ void __launch_bounds__(256)
    AddKernel(const T* y, const float* bias, int n, float* x) {
  const int i = Column<kCount>();
  if (i >= n) return;
  const int64_t at = static_cast<int64_t>(blockIdx.x) * n + i;
  float v[kCount] = {};
  if (y != nullptr) LoadFloats(y + at, v);
  AddBias(bias, i, v);
  float sum[kCount];
  LoadFloats(x + at, sum);
#pragma unroll
  for (int j = 0; j < kCount; ++j) sum[j] += v[j];
  StoreFloats(sum, x + at);
}

template <bool kGated, typename In, typename T>
absl::Status LaunchActivation(Activation activation, const In* in,
                              const float* bias, int32_t rows, int32_t n,
                              T* out, cudaStream_t stream) {
  const bool wide = TakeWide(n, in, bias, out);
  const RowGrid grid = MakeRowGrid(rows, n, wide ? kWide : 1);
  return Launch(wide ? &ActivationKernel<kGated, kWide, In, T>
                     : &ActivationKernel<kGated, 1, In, T>,
                grid.grid, grid.block, 0, stream, activation, in, bias, n, out);
}

}  // namespace

template <typename In, typename T>
absl::Status GateRows(Activation activation, const In* in, const float* bias,
                      int32_t rows, int32_t n, T* out, cudaStream_t stream) {
  return LaunchActivation<true>(activation, in, bias, rows, n, out, stream);
}

template <typename In, typename T>
absl::Status ActivateRows(Activation activation, const In* in,
                          const float* bias, int32_t rows, int32_t n, T* out,
                          cudaStream_t stream) {
  return LaunchActivation<false>(activation, in, bias, rows, n, out, stream);
}

template <typename T>
absl::Status AddRows(const T* y, const float* bias, int32_t rows, int32_t n,
                     float* x, cudaStream_t stream) {
  const bool wide = TakeWide(n, y, bias, x);
  const RowGrid grid = MakeRowGrid(rows, n, wide ? kWide : 1);
  return Launch(wide ? &AddKernel<kWide, T> : &AddKernel<1, T>, grid.grid,
                grid.block, 0, stream, y, bias, n, x);
}

absl::Status CapRows(float cap, int32_t rows, int32_t n, int64_t stride,
                     float* x, cudaStream_t stream) {
  const RowGrid grid = MakeRowGrid(rows, n, 1);
  return Launch(&CapKernel, grid.grid, grid.block, 0, stream, cap, n, stride,
                x);
}

#define SLUICE_INSTANTIATE(In, T)                                              \
  template absl::Status GateRows(Activation, const In*, const float*, int32_t, \
                                 int32_t, T*, cudaStream_t);                   \
  template absl::Status ActivateRows(Activation, const In*, const float*,      \
                                     int32_t, int32_t, T*, cudaStream_t);
SLUICE_INSTANTIATE(float, float)
SLUICE_INSTANTIATE(float, __half)
SLUICE_INSTANTIATE(float, __nv_bfloat16)
SLUICE_INSTANTIATE(__half, __half)
SLUICE_INSTANTIATE(__nv_bfloat16, __nv_bfloat16)
#undef SLUICE_INSTANTIATE
template absl::Status AddRows(const float*, const float*, int32_t, int32_t,
                              float*, cudaStream_t);
template absl::Status AddRows(const __half*, const float*, int32_t, int32_t,
                              float*, cudaStream_t);
template absl::Status AddRows(const __nv_bfloat16*, const float*, int32_t,
                              int32_t, float*, cudaStream_t);

}  // namespace sluice
