#include "runtime/kernels/cuda/attention/attention_kernels.h"
#include "runtime/kernels/cuda/attention/decode_kernels.cuh"
#include "runtime/kernels/cuda/device/dynamic_shared.h"

// The second half of sparse attention: the weights of the largest scores, then
// their rows of V. The smallest score to keep is found digit by digit of its
// bits (radix selection), exactly; of equal ones the first positions are kept,
// as attention_sparse.cc of the CPU does.

namespace sluice {
namespace {

constexpr int kThreads = kKeptThreads;
constexpr int kWarps = kThreads / 32;
constexpr int kDigits = 256;  // values of 8 bits

// Maps floats to integers in the same order; what is no number is infinite,
// which shows in the result, and both zeros are one.
__device__ __forceinline__ unsigned OrderOf(float x) {
  if (x != x) x = INFINITY;
  if (x == 0) x = 0;
  const unsigned bits = __float_as_uint(x);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float FloatAt(unsigned order) {
  return __uint_as_float(order & 0x80000000u ? order & 0x7fffffffu : ~order);
}

// Returns elements [4 * four, + 4) of a position's V, 0 behind head_dim.
template <KvFormat kFormat>
__device__ __forceinline__ float4 LoadV4(const std::byte* page,
                                         const KvBlock& block, int slot,
                                         int four) {
  const int d = 4 * four;
  if (block.head_dim % 8 != 0) {
    float v[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      v[e] = d + e < block.head_dim ? LoadV<kFormat>(page, block, slot, d + e)
                                    : 0.0f;
    }
    return make_float4(v[0], v[1], v[2], v[3]);
  }
  const std::byte* row = page + block.v + slot * block.v_row_bytes;
  if constexpr (kFormat == KvFormat::kFloat32) {
    return *reinterpret_cast<const float4*>(row + d * 4);
  } else if constexpr (IsNarrow(kFormat)) {
    constexpr auto kType =
        kFormat == KvFormat::kBFloat16 ? MmaType::kBFloat16 : MmaType::kHalf;
    const auto x = *reinterpret_cast<const uint2*>(row + d * 2);
    const float2 first = Unpack<kType>(x.x);
    const float2 second = Unpack<kType>(x.y);
    return make_float4(first.x, first.y, second.x, second.y);
  } else {
    const ScaleAndMinimum s = ScaleAt(page, block.v_scales, d / kKvGroup, slot);
    uint32_t codes;
    if constexpr (kFormat == KvFormat::kInt8) {
      codes = *reinterpret_cast<const uint32_t*>(row + d);
    } else {
      const int part = d / 32 * 32;
      const int half = min(32, block.head_dim - part) / 2;
      const int b = d - part;
      codes = *reinterpret_cast<const uint32_t*>(row + part / 2 +
                                                 (b < half ? b : b - half));
      codes = (b < half ? codes : codes >> 4) & 0x0f0f0f0fu;
    }
    return make_float4(
        fmaf(static_cast<float>(codes & 255), s.scale, s.minimum),
        fmaf(static_cast<float>(codes >> 8 & 255), s.scale, s.minimum),
        fmaf(static_cast<float>(codes >> 16 & 255), s.scale, s.minimum),
        fmaf(static_cast<float>(codes >> 24), s.scale, s.minimum));
  }
}

// KeepLargest() is for a block's sequence and query head. It brings what is
// kept to the front of `scores` and `kept`, in the order of positions.
struct Kept {
  int count;
  float top;
};
__device__ Kept KeepLargest(float* scores, int n, int count, int* kept) {
  __shared__ int bins[kDigits];
  __shared__ unsigned prefix;
  __shared__ int wanted;
  __shared__ int before[kWarps][2];
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int warp = thread / 32;
  if (thread == 0) {
    prefix = 0;
    wanted = count;
  }
  // Finds the digits of the count-th largest, from the first one on: scores
  // that remain agree with it in all earlier digits, and it is the wanted-th of
  // them.
  for (int shift = 24; shift >= 0; shift -= 8) {
    bins[thread] = 0;
    __syncthreads();
    const unsigned known = prefix;
    for (int i = thread; i < n; i += kThreads) {
      const unsigned order = OrderOf(scores[i]);
      if (shift == 24 || order >> (shift + 8) == known >> (shift + 8)) {
        atomicAdd(&bins[order >> shift & 255], 1);
      }
    }
    __syncthreads();
    if (warp == 0) {
      // Lane l has the l-th eight digits from the top.
      int mine = 0;
      for (int i = 0; i < 8; ++i) mine += bins[255 - 8 * lane - i];
      int through = mine;
      for (int delta = 1; delta < 32; delta *= 2) {
        const int left = __shfl_up_sync(kAllLanes, through, delta);
        if (lane >= delta) through += left;
      }
      int rest = wanted - (through - mine);
      __syncwarp();
      if (rest > 0 && rest <= mine) {
        int digit = 255 - 8 * lane;
        while (rest > bins[digit]) rest -= bins[digit--];
        prefix = known | static_cast<unsigned>(digit) << shift;
        wanted = rest;
      }
    }
    __syncthreads();
  }
  const unsigned min_order = prefix;
  const int equal = wanted;  // how many that equal the least

  int at = 0, equals = 0;
  unsigned top = 0;
  for (int first = 0; first < n; first += kThreads) {
    const int i = first + thread;
    const unsigned order = i < n ? OrderOf(scores[i]) : 0;
    const bool is_equal = i < n && order == min_order;
    const bool above = i < n && order > min_order;
    const unsigned lower = (1u << lane) - 1;
    const unsigned equal_mask = __ballot_sync(kAllLanes, is_equal);
    const unsigned above_mask = __ballot_sync(kAllLanes, above);
    if (lane == 0) {
      before[warp][0] = __popc(equal_mask);
      before[warp][1] = __popc(above_mask);
    }
    __syncthreads();
    int my_equals = equals, my_above = 0, all_equals = equals, all_above = 0;
    for (int w = 0; w < kWarps; ++w) {
      if (w < warp) {
        my_equals += before[w][0];
        my_above += before[w][1];
      }
      all_equals += before[w][0];
      all_above += before[w][1];
    }
    my_equals += __popc(equal_mask & lower);
    my_above += __popc(above_mask & lower);
    if (above || (is_equal && my_equals < equal)) {
      // The place is behind what earlier chunks and earlier threads keep.
      const int place =
          at + my_above + min(my_equals, equal) - min(equals, equal);
      scores[place] = FloatAt(order);
      kept[place] = i;
      top = max(top, order);
    }
    at += all_above + min(all_equals, equal) - min(equals, equal);
    equals = all_equals;
    __syncthreads();
  }
  for (int bits = 16; bits > 0; bits /= 2) {
    top = max(top, __shfl_xor_sync(kAllLanes, top, bits));
  }
  if (lane == 0) bins[warp] = static_cast<int>(top);
  __syncthreads();
  for (int w = 0; w < kWarps; ++w) {
    top = max(top, static_cast<unsigned>(bins[w]));
  }
  return {at, FloatAt(top)};
}

// Fours of elements that a lane has, at most.
constexpr int kLaneFours = kMaxHeadDim / 4 / 32;

template <KvFormat kFormat>
__global__ void __launch_bounds__(kThreads) SparseValues(const KeptArgs args) {
  // The sums of each part of a warp that takes a row of V.
  SLUICE_DYNAMIC_SHARED(float, sums);
  const AttentionArgs& common = args.decode.common;
  const KvBlock& layout = common.block;
  const int sequence = static_cast<int>(blockIdx.x);
  const int head = static_cast<int>(blockIdx.y);
  const AttentionSegment segment = common.segments[sequence];
  const int end = segment.start + 1;
  const int begin = common.window > 0 ? max(0, end - common.window) : 0;
  const int64_t place =
      (static_cast<int64_t>(sequence) * common.num_heads + head) *
      args.decode.score_stride;
  float* scores = args.decode.scores + place;
  int* kept = args.kept + place;
  const int n = end - begin;
  const int count = min(n, max(1, static_cast<int>(ceilf(__fmul_rn(
                                      args.sparsity, static_cast<float>(n))))));
  const Kept found = KeepLargest(scores, n, count, kept);

  const int fours = KeptFours(layout.head_dim);
  const int width = KeptWidth(layout.head_dim);
  const int thread = static_cast<int>(threadIdx.x);
  const int part = thread / width;
  const int parts = kThreads / width;
  const int lane = thread % width;
  const std::byte* values =
      common.kv + segment.kv_offset +
      static_cast<int64_t>(head / common.group) * layout.bytes;
  const int32_t* table = common.pages + segment.first_page;
  float4 acc[kLaneFours];
#pragma unroll
  for (int c = 0; c < kLaneFours; ++c) acc[c] = make_float4(0, 0, 0, 0);
  float total = 0;
#pragma unroll 4
  for (int i = part; i < found.count; i += parts) {
    const int position = begin + kept[i];
    const float weight = Exp2(scores[i] - found.top);
    total += weight;
    const std::byte* page =
        values + static_cast<int64_t>(__ldg(table + position / kPageTokens)) *
                     layout.page_bytes;
#pragma unroll
    for (int c = 0; c < kLaneFours; ++c) {
      const int four = lane + 32 * c;
      if (four >= fours) break;
      const float4 v =
          LoadV4<kFormat>(page, layout, position % kPageTokens, four);
      acc[c].x = fmaf(weight, v.x, acc[c].x);
      acc[c].y = fmaf(weight, v.y, acc[c].y);
      acc[c].z = fmaf(weight, v.z, acc[c].z);
      acc[c].w = fmaf(weight, v.w, acc[c].w);
    }
  }
  float* totals = sums + parts * 4 * fours;
#pragma unroll
  for (int c = 0; c < kLaneFours; ++c) {
    const int four = lane + 32 * c;
    if (four < fours) {
      *reinterpret_cast<float4*>(sums + (part * fours + four) * 4) = acc[c];
    }
  }
  if (lane == 0) totals[part] = total;
  __syncthreads();
  float sum = 0;
  for (int p = 0; p < parts; ++p) sum += totals[p];
  for (int d = thread; d < layout.head_dim; d += kThreads) {
    float value = 0;
    for (int p = 0; p < parts; ++p) value += sums[p * fours * 4 + d];
    StoreOut(common,
             (static_cast<int64_t>(segment.row) * common.num_heads + head) *
                     layout.head_dim +
                 d,
             value / sum);
  }
}

}  // namespace

KeptKernel AttendKept(KvFormat format) {
  switch (format) {
    case KvFormat::kFloat32:
      return SparseValues<KvFormat::kFloat32>;
    case KvFormat::kBFloat16:
      return SparseValues<KvFormat::kBFloat16>;
    case KvFormat::kFloat16:
      return SparseValues<KvFormat::kFloat16>;
    case KvFormat::kInt8:
      return SparseValues<KvFormat::kInt8>;
    case KvFormat::kInt4:
      return SparseValues<KvFormat::kInt4>;
  }
  return nullptr;
}

}  // namespace sluice
