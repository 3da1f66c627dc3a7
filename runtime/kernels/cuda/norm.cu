#include <algorithm>

#include "runtime/kernels/cuda/device/elements.cuh"
#include "runtime/kernels/cuda/device/launch.h"
#include "runtime/kernels/cuda/device/row_grid.h"
#include "runtime/kernels/cuda/rows.h"

namespace sluice {
namespace {

enum class Kind { kRms, kLayer, kConvert };

// Returns the block's sum, in every thread. `partial` is for this alone.
__device__ __forceinline__ float BlockSum(float x, float (&partial)[32]) {
#pragma unroll
  for (int bit = 16; bit > 0; bit /= 2) {
    x += __shfl_xor_sync(0xffffffffu, x, bit);
  }
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int warps = static_cast<int>(blockDim.x / 32);
  __syncthreads();  // the sum before has been read
  if (lane == 0) partial[threadIdx.x / 32] = x;
  __syncthreads();
  float sum = lane < warps ? partial[lane] : 0;
#pragma unroll
  for (int bit = 16; bit > 0; bit /= 2) {
    sum += __shfl_xor_sync(0xffffffffu, sum, bit);
  }
  return sum;
}

// Each block takes a row, whose elements it reads up to three times: all but
// the first time from the L1 cache.
template <Kind kKind, int kCount, typename T>
__global__ void __launch_bounds__(1024) NormKernel(NormRowsArgs args, T* out) {
  __shared__ float partial[32];
  const int n = args.n;
  int64_t from, at;
  if (args.heads > 0) {
    if (args.own_weights) args.weight += blockIdx.x % args.heads * n;
    from = at = blockIdx.x / args.heads * args.stride +
                static_cast<int64_t>(blockIdx.x % args.heads) * n;
  } else {
    at = static_cast<int64_t>(blockIdx.x) * n;
    from = args.rows_of_x == nullptr
               ? at
               : static_cast<int64_t>(args.rows_of_x[blockIdx.x]) * n;
  }
  const float* x = args.x + from;
  T* to = out + at;
  const int first = static_cast<int>(threadIdx.x) * kCount;
  const int step = static_cast<int>(blockDim.x) * kCount;

  float mean = 0;
  if constexpr (kKind == Kind::kLayer) {
    float sum = 0;
    for (int i = first; i < n; i += step) {
      float v[kCount];
      LoadFloats(x + i, v);
#pragma unroll
      for (int j = 0; j < kCount; ++j) sum += v[j];
    }
    mean = BlockSum(sum, partial) / static_cast<float>(n);
  }
  float factor = 1;
  if constexpr (kKind != Kind::kConvert) {
    float squares = 0;
    for (int i = first; i < n; i += step) {
      float v[kCount];
      LoadFloats(x + i, v);
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        squares += (v[j] - mean) * (v[j] - mean);
      }
    }
    factor = 1.0f / sqrtf(BlockSum(squares, partial) / static_cast<float>(n) +
                          args.eps);
  }
  for (int i = first; i < n; i += step) {
    float v[kCount];
    LoadFloats(x + i, v);
    if constexpr (kKind != Kind::kConvert) {
#pragma unroll
      for (int j = 0; j < kCount; ++j) v[j] = (v[j] - mean) * factor;
      if (args.weight != nullptr) {
        float w[kCount];
        LoadFloats(args.weight + i, w);
#pragma unroll
        for (int j = 0; j < kCount; ++j) v[j] *= w[j];
      }
    }
    if constexpr (kKind == Kind::kLayer) {
      if (args.bias != nullptr) {
        float b[kCount];
        LoadFloats(args.bias + i, b);
#pragma unroll
        for (int j = 0; j < kCount; ++j) v[j] += b[j];
      }
    }
    StoreFloats(v, to + i);
  }
}

// Each block takes a head of a row.
__global__ void __launch_bounds__(32) SumSquaresKernel(HeadNormArgs args) {
  const int row = static_cast<int>(blockIdx.x) / args.heads;
  const int head = static_cast<int>(blockIdx.x) % args.heads;
  const float* x = args.x + row * args.stride + head * args.head_dim;
  float sum = 0;
  for (int i = static_cast<int>(threadIdx.x); i < args.head_dim; i += 32) {
    sum += x[i] * x[i];
  }
#pragma unroll
  for (int bit = 16; bit > 0; bit /= 2) {
    sum += __shfl_xor_sync(0xffffffffu, sum, bit);
  }
  if (threadIdx.x == 0) {
    args.squares[static_cast<int64_t>(row) * args.all_heads + args.first_head +
                 head] = sum;
  }
}

// Each block takes a row.
__global__ void __launch_bounds__(256) HeadNormKernel(HeadNormArgs args) {
  const float* squares =
      args.squares + static_cast<int64_t>(blockIdx.x) * args.all_heads;
  float sum = 0;
  for (int head = 0; head < args.all_heads; ++head) sum += squares[head];
  const float factor =
      1.0f / sqrtf(sum / static_cast<float>(args.all_heads * args.head_dim) +
                   args.eps);
  float* x = args.x + static_cast<int64_t>(blockIdx.x) * args.stride;
  for (int i = static_cast<int>(threadIdx.x); i < args.heads * args.head_dim;
       i += static_cast<int>(blockDim.x)) {
    x[i] = x[i] * factor * args.weight[i];
  }
}

template <Kind kKind, typename T>
absl::Status Norm(const NormRowsArgs& args, T* out, cudaStream_t stream) {
  if (args.n <= 0) {
    return absl::InvalidArgumentError("a norm of rows without elements");
  }
  const bool wide = TakeWide(args.n, args.x, args.weight, args.bias, out);
  // A thread takes some four packs; blocks are whole warps.
  const int32_t packs = (args.n + 4 * kWide - 1) / (4 * kWide);
  const int32_t threads = std::min(1024, (packs + 31) / 32 * 32);
  return Launch(wide ? &NormKernel<kKind, kWide, T> : &NormKernel<kKind, 1, T>,
                args.rows, threads, 0, stream, args, out);
}

}  // namespace

template <typename T>
absl::Status RmsNormRows(const NormRowsArgs& args, T* out,
                         cudaStream_t stream) {
  return Norm<Kind::kRms>(args, out, stream);
}

template <typename T>
absl::Status LayerNormRows(const NormRowsArgs& args, T* out,
                           cudaStream_t stream) {
  return Norm<Kind::kLayer>(args, out, stream);
}

template <typename T>
absl::Status ConvertRows(const NormRowsArgs& args, T* out,
                         cudaStream_t stream) {
  return Norm<Kind::kConvert>(args, out, stream);
}

absl::Status SumHeadSquares(const HeadNormArgs& args, cudaStream_t stream) {
  return Launch(&SumSquaresKernel, args.rows * args.heads, 32, 0, stream, args);
}

absl::Status NormHeadsBySquares(const HeadNormArgs& args, cudaStream_t stream) {
  return Launch(&HeadNormKernel, args.rows, 256, 0, stream, args);
}

#define SLUICE_INSTANTIATE(T)                                                 \
  template absl::Status RmsNormRows(const NormRowsArgs&, T*, cudaStream_t);   \
  template absl::Status LayerNormRows(const NormRowsArgs&, T*, cudaStream_t); \
  template absl::Status ConvertRows(const NormRowsArgs&, T*, cudaStream_t);
SLUICE_INSTANTIATE(float)
SLUICE_INSTANTIATE(__half)
SLUICE_INSTANTIATE(__nv_bfloat16)
#undef SLUICE_INSTANTIATE

}  // namespace sluice
