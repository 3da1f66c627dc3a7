#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cstddef>

#include "runtime/kernels/cuda/attention/kv_append.h"
#include "runtime/kernels/cuda/device/launch.h"

namespace sluice {
namespace {

// Return the rotary embedding (Su et al. 2021, equation 34, with pairs as
// Hugging Face lays them out) of a pair (a, b) = (x[i], x[i + half]). Products
// are rounded before they are added, as on the CPU: what either stores in pages
// is the same.
__device__ __forceinline__ float RotateFirst(float a, float b, float cos,
                                             float sin) {
  return __fsub_rn(__fmul_rn(a, cos), __fmul_rn(b, sin));
}
__device__ __forceinline__ float RotateSecond(float a, float b, float cos,
                                              float sin) {
  return __fadd_rn(__fmul_rn(b, cos), __fmul_rn(a, sin));
}

constexpr int kThreads = 128;
constexpr unsigned kAllLanes = 0xffffffffu;
// The minimum of a group that holds a NaN, an infinity or too large a number.
constexpr unsigned short kHalfNaN = 0x7e00;

__host__ __device__ constexpr bool Quantized(KvFormat format) {
  return format == KvFormat::kInt8 || format == KvFormat::kInt4;
}

__global__ void __launch_bounds__(256)
    RotateKernel(RotaryTable table, const int32_t* positions, int heads,
                 int head_dim, int64_t stride, float* q) {
  float* row = q + blockIdx.x * stride;
  const int64_t angle =
      static_cast<int64_t>(positions[blockIdx.x]) * table.half;
  for (int i = static_cast<int>(threadIdx.x); i < heads * table.half;
       i += static_cast<int>(blockDim.x)) {
    const int pair = i % table.half;
    float* x = row + i / table.half * head_dim + pair;
    const float a = x[0];
    const float b = x[table.half];
    const float cos = table.cos[angle + pair];
    const float sin = table.sin[angle + pair];
    x[0] = RotateFirst(a, b, cos, sin);
    x[table.half] = RotateSecond(a, b, cos, sin);
  }
}

// A run's K and V of one head, and where they go.
struct Run {
  int count;
  int slot;      // of the first position in its page
  int position;  // of the first
  const float* k;
  const float* v;
  std::byte* page;  // the head's block
};

__device__ __forceinline__ Run FindRun(const KvAppendArgs& args) {
  const KvRun run = args.runs[blockIdx.x / args.num_kv_heads];
  const int64_t head = blockIdx.x % args.num_kv_heads;
  const AttentionSegment& segment = args.segments[run.segment];
  const int position = segment.start + run.first;
  const int64_t page = args.pages[segment.first_page + position / kPageTokens];
  const int64_t from =
      (static_cast<int64_t>(segment.row) + run.first) * args.stride +
      head * args.block.head_dim;
  std::byte* kv = args.kv + segment.kv_offset;
  return {run.count,
          position % kPageTokens,
          position,
          args.k + from,
          args.v + from,
          kv + page * args.block.page_bytes + head * args.block.bytes};
}

// Writes the run's K with positions applied: [count][head_dim + 1], so that
// reading along positions, where head_dim is even, meets no bank twice.
__device__ __forceinline__ void RotateRun(const KvAppendArgs& args,
                                          const Run& run, float* k) {
  const int head_dim = args.block.head_dim;
  const int half = args.rotary.half;
  for (int at = static_cast<int>(threadIdx.x); at < run.count * head_dim;
       at += kThreads) {
    const int j = at / head_dim;
    const int i = at % head_dim;
    const float* row = run.k + j * args.stride;
    float x = row[i];
    if (i < 2 * half) {
      const int pair = i < half ? i : i - half;
      const int64_t angle = (static_cast<int64_t>(run.position) + j) * half;
      const float cos = args.rotary.cos[angle + pair];
      const float sin = args.rotary.sin[angle + pair];
      x = i < half ? RotateFirst(x, row[i + half], cos, sin)
                   : RotateSecond(row[pair], x, cos, sin);
    }
    k[j * (head_dim + 1) + i] = x;
  }
}

__device__ __forceinline__ void StoreAs(float x, float* to) { *to = x; }
__device__ __forceinline__ void StoreAs(float x, __nv_bfloat16* to) {
  *to = __float2bfloat16_rn(x);
}
__device__ __forceinline__ void StoreAs(float x, __half* to) {
  *to = __float2half_rn(x);
}

template <typename T>
__device__ __forceinline__ void StorePlain(const KvAppendArgs& args,
                                           const Run& run, const float* k) {
  const int head_dim = args.block.head_dim;
  T* to_k = reinterpret_cast<T*>(run.page);
  T* to_v = reinterpret_cast<T*>(run.page + args.block.v);
  for (int at = static_cast<int>(threadIdx.x); at < run.count * head_dim;
       at += kThreads) {
    // Neighbouring threads take neighbouring positions of K, elements of V.
    const int i = at / run.count;
    const int j = at % run.count;
    StoreAs(k[j * (head_dim + 1) + i], to_k + i * kPageTokens + run.slot + j);
    const int row = at / head_dim;
    const int col = at % head_dim;
    StoreAs(run.v[row * args.stride + col],
            to_v + (run.slot + row) * head_dim + col);
  }
}

// The lanes of a warp quantize x[0, n), n <= kKvGroup, as StoreKv defines it.
__device__ __forceinline__ void QuantizeGroup(const float* x, int n,
                                              float levels,
                                              unsigned char* codes,
                                              unsigned short* scale,
                                              unsigned short* minimum) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const float first = lane < n ? x[lane] : x[0];
  const float second = lane + 32 < n ? x[lane + 32] : x[0];
  float low = fminf(first, second);
  float high = fmaxf(first, second);
  bool odd = !isfinite(first) || !isfinite(second);
#pragma unroll
  for (int bit = 16; bit > 0; bit /= 2) {
    low = fminf(low, __shfl_xor_sync(kAllLanes, low, bit));
    high = fmaxf(high, __shfl_xor_sync(kAllLanes, high, bit));
  }
  // The sum makes a negative zero positive.
  const __half half_m = __float2half_rn(__fadd_rn(low, 0.0f));
  const float m = __half2float(half_m);
  const float range = __fsub_rn(high, m);
  const __half half_s = __float2half_rn(__fdiv_rn(fmaxf(range, 0.0f), levels));
  const float s = __half2float(half_s);
  odd = __any_sync(kAllLanes, odd) || !isfinite(m) || !isfinite(s);
  if (lane == 0) {
    *scale = odd ? static_cast<unsigned short>(0) : __half_as_ushort(half_s);
    *minimum = odd ? kHalfNaN : __half_as_ushort(half_m);
  }
  const auto code = [&](float v) -> unsigned char {
    if (odd || s == 0) return 0;
    v = __fdiv_rn(__fsub_rn(v, m), s);
    return static_cast<unsigned char>(
        __float2int_rn(fminf(fmaxf(v, 0.0f), levels)));
  };
  if (lane < n) codes[lane] = code(first);
  if (lane + 32 < n) codes[lane + 32] = code(second);
}

// Returns the bytes from one position's codes to the next, in shared memory.
__host__ __device__ constexpr int CodeStride(int head_dim) {
  return (head_dim + 3) / 4 * 4;
}

template <bool kInt4>
__device__ __forceinline__ void QuantizeRun(const KvAppendArgs& args,
                                            const Run& run, const float* k,
                                            unsigned char* k_codes,
                                            unsigned char* v_codes) {
  constexpr float kLevels = kInt4 ? 15.0f : 255.0f;
  const int head_dim = args.block.head_dim;
  const int stride = CodeStride(head_dim);
  const int groups = args.block.groups;
  for (int task = static_cast<int>(threadIdx.x / 32);
       task < run.count * groups * 2; task += kThreads / 32) {
    const bool is_k = task % 2 == 0;
    const int group = task / 2 % groups;
    const int j = task / 2 / groups;
    const int begin = group * kKvGroup;
    const float* x =
        (is_k ? k + j * (head_dim + 1) : run.v + j * args.stride) + begin;
    auto* scale =
        reinterpret_cast<unsigned short*>(
            run.page + (is_k ? args.block.k_scales : args.block.v_scales)) +
        group * 2 * kPageTokens + run.slot + j;
    QuantizeGroup(x, min(kKvGroup, head_dim - begin), kLevels,
                  (is_k ? k_codes : v_codes) + j * stride + begin, scale,
                  scale + kPageTokens);
  }
  // Codes that stand for no element are 0.
  for (int j = static_cast<int>(threadIdx.x); j < run.count; j += kThreads) {
    for (int i = head_dim; i < stride; ++i) k_codes[j * stride + i] = 0;
  }
}

template <bool kInt4>
__device__ __forceinline__ void StoreKCodes(const KvAppendArgs& args,
                                            const Run& run,
                                            const unsigned char* codes) {
  const int stride = CodeStride(args.block.head_dim);
  const int fours = stride / 4;
  auto* to = reinterpret_cast<uint32_t*>(run.page);
  const auto four_at = [&](int four, int j) {
    return *reinterpret_cast<const uint32_t*>(codes + j * stride + four * 4);
  };
  if constexpr (!kInt4) {
    for (int at = static_cast<int>(threadIdx.x); at < fours * run.count;
         at += kThreads) {
      const int four = at / run.count;
      const int j = at % run.count;
      to[four * kPageTokens + run.slot + j] = four_at(four, j);
    }
  } else {
    // A word is of positions h (low halves of its bytes) and h + 16 (high).
    constexpr int kHalf = kPageTokens / 2;
    for (int at = static_cast<int>(threadIdx.x); at < fours * kHalf;
         at += kThreads) {
      const int four = at / kHalf;
      const int h = at % kHalf;
      const int low = h - run.slot;
      const int high = low + kHalf;
      const bool has_low = low >= 0 && low < run.count;
      const bool has_high = high >= 0 && high < run.count;
      if (!has_low && !has_high) continue;
      uint32_t* word = to + four * kHalf + h;
      uint32_t value = has_low && has_high ? 0 : *word;
      if (has_low) value = (value & 0xf0f0f0f0u) | four_at(four, low);
      if (has_high) value = (value & 0x0f0f0f0fu) | four_at(four, high) << 4;
      *word = value;
    }
  }
}

template <bool kInt4>
__device__ __forceinline__ void StoreVCodes(const KvAppendArgs& args,
                                            const Run& run,
                                            const unsigned char* codes) {
  const int head_dim = args.block.head_dim;
  const int stride = CodeStride(head_dim);
  const int row_bytes = args.block.v_row_bytes;
  auto* to = reinterpret_cast<unsigned char*>(run.page + args.block.v) +
             run.slot * row_bytes;
  // Rows lie one behind the other.
  for (int at = static_cast<int>(threadIdx.x); at < run.count * row_bytes;
       at += kThreads) {
    const unsigned char* row = codes + at / row_bytes * stride;
    const int byte = at % row_bytes;
    if constexpr (kInt4) {
      // 32 elements are 16 bytes; byte b has elements b and b + half.
      const int first = byte / 16 * 32;
      const int width = min(32, head_dim - first);
      const int half = (width + 1) / 2;
      const int low = byte % 16;
      const int high = low + half < width ? row[first + low + half] : 0;
      to[at] = static_cast<unsigned char>(row[first + low] | high << 4);
    } else {
      to[at] = row[byte];
    }
  }
}

// Each block takes a run and a KV head.
template <KvFormat kFormat>
__global__ void __launch_bounds__(kThreads)
    AppendKernel(KvAppendArgs args, int longest_run) {
  SLUICE_DYNAMIC_SHARED(float, k);
  const Run run = FindRun(args);
  RotateRun(args, run, k);
  __syncthreads();
  if constexpr (!Quantized(kFormat)) {
    using Narrow = std::conditional_t<kFormat == KvFormat::kBFloat16,
                                      __nv_bfloat16, __half>;
    using T = std::conditional_t<kFormat == KvFormat::kFloat32, float, Narrow>;
    StorePlain<T>(args, run, k);
  } else {
    constexpr bool kInt4 = kFormat == KvFormat::kInt4;
    const int head_dim = args.block.head_dim;
    auto* k_codes =
        reinterpret_cast<unsigned char*>(k + longest_run * (head_dim + 1));
    unsigned char* v_codes = k_codes + longest_run * CodeStride(head_dim);
    QuantizeRun<kInt4>(args, run, k, k_codes, v_codes);
    __syncthreads();
    StoreKCodes<kInt4>(args, run, k_codes);
    StoreVCodes<kInt4>(args, run, v_codes);
  }
}

}  // namespace

absl::Status RotateRows(const RotaryTable& table, const int32_t* positions,
                        int32_t rows, int32_t heads, int32_t head_dim,
                        int64_t stride, float* q, cudaStream_t stream) {
  const int32_t pairs = heads * table.half;
  if (pairs == 0) return absl::OkStatus();
  const int32_t threads = std::min(256, (pairs + 31) / 32 * 32);
  return Launch(&RotateKernel, rows, threads, 0, stream, table, positions,
                heads, head_dim, stride, q);
}

int32_t MakeKvRuns(const BatchView& batch, int32_t first_segment, int32_t count,
                   std::vector<KvRun>* runs) {
  runs->clear();
  int32_t longest = 0;
  for (int32_t s = 0; s < count; ++s) {
    const SegmentView& segment = batch.segments[first_segment + s];
    for (int32_t i = 0; i < segment.num_tokens;) {
      const int32_t tokens =
          std::min(segment.num_tokens - i,
                   kPageTokens - (segment.start + i) % kPageTokens);
      runs->push_back({s, i, tokens});
      longest = std::max(longest, tokens);
      i += tokens;
    }
  }
  return longest;
}

absl::Status AppendKv(const KvAppendArgs& args, KvFormat format,
                      int32_t longest_run, cudaStream_t stream) {
  const int32_t head_dim = args.block.head_dim;
  if (longest_run < 0 || longest_run > kPageTokens) {
    return absl::InvalidArgumentError("a run of K and V beyond its page");
  }
  const int64_t blocks = int64_t{args.num_runs} * args.num_kv_heads;
  if (blocks > INT32_MAX) {
    return absl::InvalidArgumentError("too many runs of K and V at a time");
  }
  size_t shared = sizeof(float) * longest_run * (head_dim + 1);
  if (Quantized(format)) {
    shared += size_t{2} * longest_run * CodeStride(head_dim);
  }
  void (*kernel)(KvAppendArgs, int) = nullptr;
  switch (format) {
    case KvFormat::kFloat32:
      kernel = &AppendKernel<KvFormat::kFloat32>;
      break;
    case KvFormat::kBFloat16:
      kernel = &AppendKernel<KvFormat::kBFloat16>;
      break;
    case KvFormat::kFloat16:
      kernel = &AppendKernel<KvFormat::kFloat16>;
      break;
    case KvFormat::kInt8:
      kernel = &AppendKernel<KvFormat::kInt8>;
      break;
    case KvFormat::kInt4:
      kernel = &AppendKernel<KvFormat::kInt4>;
      break;
  }
  return Launch(kernel, dim3(static_cast<unsigned>(blocks)), kThreads, shared,
                stream, args, longest_run);
}

}  // namespace sluice
