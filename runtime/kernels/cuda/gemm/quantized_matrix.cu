#include <algorithm>
#include <type_traits>

#include "common/status_macros.h"
#include "runtime/kernels/cuda/device/elements.cuh"
#include "runtime/kernels/cuda/device/launch.h"
#include "runtime/kernels/cuda/gemm/quantized_matrix.h"
#include "runtime/quant/group_codec.h"

namespace sluice {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kGroup = kQuantGroup;
constexpr int kHeaderBytes = 64;
// A thread takes the codes of four columns for a pair of inputs at a time;
// sixteen threads a group's columns.
constexpr int kColumns = 4;
constexpr int kGroupThreads = kGroup / kColumns;
constexpr int kStepPairs = kThreads / kGroupThreads;

// The codes of four columns for both inputs.
template <int kBits>
struct Word;
template <>
struct Word<4> {
  uint32_t bits;
  __device__ __forceinline__ static Word Zero() { return {0}; }
  __device__ __forceinline__ int Even(int column) const {
    return static_cast<int>(bits >> (8 * column) & 15);
  }
  __device__ __forceinline__ int Odd(int column) const {
    return static_cast<int>(bits >> (8 * column + 4) & 15);
  }
};
template <>
struct alignas(8) Word<8> {
  uint32_t bits[2];
  __device__ __forceinline__ static Word Zero() { return {{0, 0}}; }
  __device__ __forceinline__ int Even(int column) const {
    return static_cast<int>(bits[column / 2] >> (16 * (column % 2)) & 255);
  }
  __device__ __forceinline__ int Odd(int column) const {
    return static_cast<int>(bits[column / 2] >> (16 * (column % 2) + 8) & 255);
  }
};

// scale * unit and minimum * unit.
struct Params {
  float scale;
  float minimum;
};

// Converts a whole number below 2^23, without the slow conversion.
__device__ __forceinline__ float CodeToFloat(int code) {
  return __uint_as_float(0x4b000000u | static_cast<unsigned>(code)) -
         8388608.0f;
}

__device__ __forceinline__ float Dequantize(int code, Params params) {
  return fmaf(CodeToFloat(code), params.scale, params.minimum);
}

// A group of columns as it lies in memory.
template <int kBits>
struct GroupView {
  int first;    // its first column
  int columns;  // the columns that there are
  int pairs;
  int padded;  // columns with codes
  float unit;
  const uint32_t* params;  // scale in the low half, minimum in the high
  const std::byte* codes;

  __device__ GroupView(const QuantizedMatrix& w, int group) {
    const int groups_per_panel = w.panel_columns / kGroup;
    const int panel = group / groups_per_panel;
    const int in_panel = group % groups_per_panel;
    const int panel_columns =
        min(w.panel_columns, w.n - panel * w.panel_columns);
    const int groups = (panel_columns + kGroup - 1) / kGroup;
    const size_t at = w.offset + panel * w.panel_bytes;
    const std::byte* bytes = at < w.packed.split
                                 ? w.packed.low + at
                                 : w.packed.high + (at - w.packed.high_offset);
    first = group * kGroup;
    columns = min(kGroup, w.n - first);
    pairs = (w.k + 1) / 2;
    padded = (columns + 15) / 16 * 16;
    unit = *reinterpret_cast<const float*>(bytes);
    params = reinterpret_cast<const uint32_t*>(bytes + kHeaderBytes) +
             static_cast<size_t>(in_panel) * 2 * pairs;
    codes = bytes + kHeaderBytes +
            static_cast<size_t>(groups) * 2 * pairs * sizeof(uint32_t) +
            static_cast<size_t>(in_panel) * kGroup * pairs * (kBits / 4);
  }

  __device__ __forceinline__ Params ParamsOf(int input) const {
    if (input >= 2 * pairs) return {0, 0};
    const uint32_t both = params[input];
    return {__half2float(
                __ushort_as_half(static_cast<unsigned short>(both & 0xffff))) *
                unit,
            __half2float(
                __ushort_as_half(static_cast<unsigned short>(both >> 16))) *
                unit};
  }

  // Returns the codes of this thread's columns for a pair, 0 from `end` on.
  __device__ __forceinline__ Word<kBits> WordOf(int pair, int end) const {
    const int column = static_cast<int>(threadIdx.x % kGroupThreads) * kColumns;
    if (pair >= end || column >= padded) return Word<kBits>::Zero();
    const size_t at =
        (static_cast<size_t>(pair) * padded + column) * (kBits / 4);
    return *reinterpret_cast<const Word<kBits>*>(codes + at);
  }
};

// --- Dequantization ----------------------------------------------------------

constexpr int kTileInputs = 64;

// Each block takes a group and 64 inputs and turns them round in shared memory:
// codes lie column by column, weights input by input.
template <typename T, int kBits>
__global__ void __launch_bounds__(kThreads)
    DequantizeKernel(QuantizedMatrix w, int tiles, T* out) {
  __shared__ Params params[kTileInputs];
  // Each row has two elements more, so that the next is in another bank.
  __shared__ Pack<T, 2> tile[kGroup][kTileInputs / 2 + 1];
  const GroupView<kBits> group(w, static_cast<int>(blockIdx.x) / tiles);
  const int begin = static_cast<int>(blockIdx.x) % tiles * kTileInputs;
  const int me = static_cast<int>(threadIdx.x);

  constexpr int kSteps = kTileInputs / 2 / kStepPairs;
  Word<kBits> words[kSteps];
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    words[step] = group.WordOf(
        begin / 2 + step * kStepPairs + me / kGroupThreads, group.pairs);
  }
  if (me < kTileInputs) params[me] = group.ParamsOf(begin + me);
  __syncthreads();
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const int pair = step * kStepPairs + me / kGroupThreads;
    const Params even = params[2 * pair];
    const Params odd = params[2 * pair + 1];
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      Pack<T, 2>& to = tile[me % kGroupThreads * kColumns + c][pair];
      to.v[0] = FromFloat<T>(Dequantize(words[step].Even(c), even));
      to.v[1] = FromFloat<T>(Dequantize(words[step].Odd(c), odd));
    }
  }
  __syncthreads();
  const bool whole = w.k % 2 == 0;
  for (int at = me; at < group.columns * (kTileInputs / 2); at += kThreads) {
    const int column = at / (kTileInputs / 2);
    const int pair = at % (kTileInputs / 2);
    const int input = begin + 2 * pair;
    if (input >= w.k) continue;
    T* to = out + (static_cast<int64_t>(group.first) + column) * w.k + input;
    if (whole) {
      *reinterpret_cast<Pack<T, 2>*>(to) = tile[column][pair];
    } else {
      to[0] = tile[column][pair].v[0];
      if (input + 1 < w.k) to[1] = tile[column][pair].v[1];
    }
  }
}

// --- GEMMs -------------------------------------------------------------------

// The element type of x is data, since only the load of x looks at it.
enum class Element { kFloat, kHalf, kBFloat16 };
template <typename T>
constexpr Element kElementOf = std::is_same_v<T, float>    ? Element::kFloat
                               : std::is_same_v<T, __half> ? Element::kHalf
                                                           : Element::kBFloat16;

struct GemmArgs {
  QuantizedMatrix w;
  QuantizedGemmPlan plan;
  Element element;
  const void* x;
  const float* bias;
  bool accumulate;
  float* y;
  int64_t y_stride;
  float* partial;  // [splits, rows, n]
  int32_t* counters;
};

__device__ __forceinline__ void Finish(const GemmArgs& args, int row,
                                       int column, float sum) {
  float* y = args.y + row * args.y_stride + column;
  if (args.bias != nullptr) sum += args.bias[column];
  *y = args.accumulate ? *y + sum : sum;
}

// Inputs that are brought to shared memory at a time.
__host__ __device__ constexpr int ChunkInputs(int rows) {
  return rows <= 4 ? 512 : 2048 / rows;
}

// Loads inputs [first, first + kChunk) of all rows, 0 where there are none.
template <typename T, int kRows, int kChunk>
__device__ __forceinline__ void LoadInputs(const GemmArgs& args, int first,
                                           float (&inputs)[kRows][kChunk]) {
  const T* x = static_cast<const T*>(args.x);
  for (int at = static_cast<int>(threadIdx.x); at < kRows * kChunk;
       at += kThreads) {
    const int row = at / kChunk;
    const int input = first + at % kChunk;
    inputs[row][at % kChunk] =
        row < args.plan.rows && input < args.w.k
            ? ToFloat(x[static_cast<int64_t>(row) * args.w.k + input])
            : 0;
  }
}

// A block takes a group's columns for a part of the inputs. Its warps take
// turns with the pairs of inputs; x is in shared memory, sums in registers.
template <int kRows, int kBits>
__global__ void __launch_bounds__(kThreads) GemmKernel(const GemmArgs args) {
  constexpr int kChunk = ChunkInputs(kRows);
  constexpr int kSteps = kChunk / 2 / kStepPairs;
  constexpr int kPart = kRows < 4 ? kRows : 4;  // rows that are summed together
  __shared__ __align__(8) float inputs[kRows][kChunk];
  __shared__ Params params[kChunk];
  __shared__ float sums[kWarps][kPart][kGroup];
  __shared__ int turn;

  const int rows = args.plan.rows;
  const int groups = static_cast<int>(gridDim.x) / args.plan.splits;
  const int g = static_cast<int>(blockIdx.x) % groups;
  const int split = static_cast<int>(blockIdx.x) / groups;
  const GroupView<kBits> group(args.w, g);
  const int me = static_cast<int>(threadIdx.x);
  const int begin = split * args.plan.pairs_per_split;
  const int end = min(group.pairs, begin + args.plan.pairs_per_split);

  float acc[kRows][kColumns] = {};
  for (int first = begin; first < end; first += kChunk / 2) {
    // The codes are on their way while x is brought.
    Word<kBits> words[kSteps];
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      words[step] =
          group.WordOf(first + step * kStepPairs + me / kGroupThreads, end);
    }
    __syncthreads();  // the chunk before is used up
    switch (args.element) {
      case Element::kFloat:
        LoadInputs<float>(args, 2 * first, inputs);
        break;
      case Element::kHalf:
        LoadInputs<__half>(args, 2 * first, inputs);
        break;
      case Element::kBFloat16:
        LoadInputs<__nv_bfloat16>(args, 2 * first, inputs);
        break;
    }
    for (int at = me; at < kChunk; at += kThreads) {
      params[at] = group.ParamsOf(2 * first + at);
    }
    __syncthreads();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int pair = step * kStepPairs + me / kGroupThreads;
      if (first + pair >= end) break;
      const Params even = params[2 * pair];
      const Params odd = params[2 * pair + 1];
      float w[kColumns][2];
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        w[c][0] = Dequantize(words[step].Even(c), even);
        w[c][1] = Dequantize(words[step].Odd(c), odd);
      }
#pragma unroll
      for (int row = 0; row < kRows; ++row) {
        const float2 both =
            *reinterpret_cast<const float2*>(&inputs[row][2 * pair]);
#pragma unroll
        for (int c = 0; c < kColumns; ++c) {
          acc[row][c] = fmaf(both.x, w[c][0], acc[row][c]);
          acc[row][c] = fmaf(both.y, w[c][1], acc[row][c]);
        }
      }
    }
  }

  const bool whole = args.plan.splits == 1;
#pragma unroll
  for (int part = 0; part < kRows; part += kPart) {
    __syncthreads();  // the part before is written
#pragma unroll
    for (int j = 0; j < kPart; ++j) {
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        // The halves of a warp have the same columns.
        float sum = acc[part + j][c];
        sum += __shfl_xor_sync(0xffffffffu, sum, kGroupThreads);
        if (me % 32 < kGroupThreads) {
          sums[me / 32][j][me % 32 * kColumns + c] = sum;
        }
      }
    }
    __syncthreads();
    for (int at = me; at < kPart * kGroup; at += kThreads) {
      const int row = part + at / kGroup;
      const int column = at % kGroup;
      if (row >= rows || column >= group.columns) continue;
      float sum = 0;
#pragma unroll
      for (int warp = 0; warp < kWarps; ++warp) {
        sum += sums[warp][at / kGroup][column];
      }
      if (whole) {
        Finish(args, row, group.first + column, sum);
      } else {
        args.partial[(static_cast<int64_t>(split) * rows + row) * args.w.n +
                     group.first + column] = sum;
      }
    }
  }
  if (whole) return;

  // The last block of a group to come here sums the parts, in their order.
  __threadfence();
  __syncthreads();
  if (me == 0) turn = atomicAdd(&args.counters[g], 1);
  __syncthreads();
  if (turn != args.plan.splits - 1) return;
  __threadfence();
  if (me == 0) args.counters[g] = 0;
  for (int at = me; at < rows * kGroup; at += kThreads) {
    const int row = at / kGroup;
    const int column = at % kGroup;
    if (column >= group.columns) continue;
    const float* part = args.partial + static_cast<int64_t>(row) * args.w.n +
                        group.first + column;
    float sum = 0;
    for (int s = 0; s < args.plan.splits; ++s) {
      sum += __ldcg(part + static_cast<int64_t>(s) * rows * args.w.n);
    }
    Finish(args, row, group.first + column, sum);
  }
}

template <int kBits>
auto GemmKernelFor(int32_t rows) {
  if (rows == 1) return &GemmKernel<1, kBits>;
  if (rows == 2) return &GemmKernel<2, kBits>;
  if (rows <= 4) return &GemmKernel<4, kBits>;
  if (rows <= 8) return &GemmKernel<8, kBits>;
  return &GemmKernel<kQuantizedGemmRows, kBits>;
}

}  // namespace

absl::Status QuantizedMatrix::Validate() const {
  if (n <= 0 || k <= 0 || (bits != 4 && bits != 8) || panel_columns <= 0 ||
      panel_columns % kGroup != 0 || panel_columns > PanelCodec::kMaxColumns ||
      offset % 16 != 0 || panel_bytes % 16 != 0) {
    return InvalidArgument("a quantized matrix of ", n, " x ", k, " with ",
                           bits, " bits in panels of ", panel_columns,
                           " columns and ", panel_bytes, " bytes at ", offset);
  }
  return absl::OkStatus();
}

PanelCodec DevicePanelCodec(int32_t columns, int32_t k, int bits, DType dtype) {
  return PanelCodec(columns, k, bits, dtype,
                    PanelOrder{.block = kGroup, .padded_k = k});
}

template <typename T>
absl::Status DequantizeMatrix(const QuantizedMatrix& w, T* out,
                              cudaStream_t stream) {
  SLUICE_RETURN_IF_ERROR(w.Validate());
  const int32_t tiles = (w.k + kTileInputs - 1) / kTileInputs;
  const int64_t blocks = int64_t{w.groups()} * tiles;
  if (blocks > INT32_MAX) {
    return absl::InvalidArgumentError("a quantized matrix beyond any device");
  }
  return Launch(w.bits == 4 ? &DequantizeKernel<T, 4> : &DequantizeKernel<T, 8>,
                dim3(static_cast<unsigned>(blocks)), kThreads, 0, stream, w,
                tiles, out);
}

absl::StatusOr<QuantizedGemmPlan> PlanQuantizedGemm(const QuantizedMatrix& w,
                                                    int32_t rows,
                                                    int32_t processors) {
  SLUICE_RETURN_IF_ERROR(w.Validate());
  if (rows < 1 || rows > kQuantizedGemmRows || processors < 1) {
    return InvalidArgument("a quantized product of ", rows, " rows");
  }
  // Each processor holds some blocks at a time; a block's share should be long
  // beside what it takes to begin and end.
  const int32_t pairs = (w.k + 1) / 2;
  const int32_t wanted =
      (GpuLimits::kBlocksPerProcessor * processors + w.groups() - 1) /
      w.groups();
  const int32_t max_splits = std::max(1, pairs / GpuLimits::kMinPairs);
  QuantizedGemmPlan plan;
  plan.rows = rows;
  const int32_t splits = std::min(wanted, max_splits);
  // Each split gets whole steps.
  plan.pairs_per_split = ((pairs + splits - 1) / splits + kStepPairs - 1) /
                         kStepPairs * kStepPairs;
  plan.splits = (pairs + plan.pairs_per_split - 1) / plan.pairs_per_split;
  if (plan.splits > 1) {
    plan.workspace_bytes = sizeof(float) * plan.splits * rows * w.n;
  }
  return plan;
}

template <typename T>
absl::Status QuantizedGemm(const QuantizedMatrix& w,
                           const QuantizedGemmPlan& plan, const T* x,
                           const float* bias, bool accumulate, float* y,
                           int64_t y_stride, void* workspace, int32_t* counters,
                           cudaStream_t stream) {
  SLUICE_RETURN_IF_ERROR(w.Validate());
  if (plan.splits > 1 && (workspace == nullptr || counters == nullptr)) {
    return absl::InvalidArgumentError(
        "a quantized product in parts without its work space");
  }
  const GemmArgs args{w,       plan,     kElementOf<T>,
                      x,       bias,     accumulate,
                      y,       y_stride, static_cast<float*>(workspace),
                      counters};
  return Launch(
      w.bits == 4 ? GemmKernelFor<4>(plan.rows) : GemmKernelFor<8>(plan.rows),
      w.groups() * plan.splits, kThreads, 0, stream, args);
}

#define SLUICE_INSTANTIATE(T)                                        \
  template absl::Status DequantizeMatrix(const QuantizedMatrix&, T*, \
                                         cudaStream_t);              \
  template absl::Status QuantizedGemm(                               \
      const QuantizedMatrix&, const QuantizedGemmPlan&, const T*,    \
      const float*, bool, float*, int64_t, void*, int32_t*, cudaStream_t);
SLUICE_INSTANTIATE(float)
SLUICE_INSTANTIATE(__half)
SLUICE_INSTANTIATE(__nv_bfloat16)
#undef SLUICE_INSTANTIATE

}  // namespace sluice
