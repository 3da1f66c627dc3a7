#include "runtime/kernels/cuda/device/elements.cuh"
#include "runtime/kernels/cuda/device/launch.h"
#include "runtime/kernels/cuda/device/row_grid.h"
#include "runtime/kernels/cuda/rows.h"

namespace sluice {
namespace {

template <bool kAdd, int kCount, typename T, typename Out>
__global__ void __launch_bounds__(256)
    GatherKernel(const T* table, const int32_t* numbers, int offset, int n,
                 Out* out) {
  const int i =
      static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x) * kCount;
  if (i >= n) return;
  const int64_t number = static_cast<int64_t>(numbers[blockIdx.x]) + offset;
  Out* to = out + static_cast<int64_t>(blockIdx.x) * n + i;
  float v[kCount];
  LoadFloats(table + number * n + i, v);
  if constexpr (kAdd) {
    float sum[kCount];
    LoadFloats(to, sum);
#pragma unroll
    for (int j = 0; j < kCount; ++j) v[j] += sum[j];
  }
  StoreFloats(v, to);
}

template <bool kAdd, typename T, typename Out>
absl::Status Gather(const T* table, const int32_t* numbers, int32_t offset,
                    int32_t rows, int32_t n, Out* out, cudaStream_t stream) {
  const bool wide = TakeWide(n, table, out);
  const RowGrid grid = MakeRowGrid(rows, n, wide ? kWide : 1);
  return Launch(wide ? &GatherKernel<kAdd, kWide, T, Out>
                     : &GatherKernel<kAdd, 1, T, Out>,
                grid.grid, grid.block, 0, stream, table, numbers, offset, n,
                out);
}

}  // namespace

template <typename T, typename Out>
absl::Status GatherRows(const T* table, const int32_t* numbers, int32_t rows,
                        int32_t n, Out* out, cudaStream_t stream) {
  return Gather<false>(table, numbers, 0, rows, n, out, stream);
}

template <typename T>
absl::Status AddGatheredRows(const T* table, const int32_t* numbers,
                             int32_t offset, int32_t rows, int32_t n, float* x,
                             cudaStream_t stream) {
  return Gather<true>(table, numbers, offset, rows, n, x, stream);
}

#define SLUICE_INSTANTIATE(T)                                                  \
  template absl::Status GatherRows(const T*, const int32_t*, int32_t, int32_t, \
                                   T*, cudaStream_t);                          \
  template absl::Status AddGatheredRows(const T*, const int32_t*, int32_t,     \
                                        int32_t, int32_t, float*,              \
                                        cudaStream_t);
SLUICE_INSTANTIATE(float)
SLUICE_INSTANTIATE(__half)
SLUICE_INSTANTIATE(__nv_bfloat16)
#undef SLUICE_INSTANTIATE
template absl::Status GatherRows(const __half*, const int32_t*, int32_t,
                                 int32_t, float*, cudaStream_t);
template absl::Status GatherRows(const __nv_bfloat16*, const int32_t*, int32_t,
                                 int32_t, float*, cudaStream_t);

}  // namespace sluice
