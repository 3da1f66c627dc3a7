#include <cfloat>
#include <climits>
#include <cmath>

#include "common/status_macros.h"
#include "runtime/kernels/cuda/device/launch.h"
#include "runtime/kernels/cuda/sampling.h"

// Each block takes a row, whose logits it reads several times: some rows' fit
// into the L2 cache. No row is sorted. The k-th largest logit, and the lightest
// weight that top-p keeps, are found digit by digit of their bits: what is
// above each digit is counted, or its weights are summed. A token is drawn by
// summing the weights in 32 parts of the row, then in 32 of the part in which
// the token lies, and so on. Where top-k keeps few, these are listed first, and
// the rest is done with the list as with a row.
//
// Logits of -inf are nowhere counted, so that what a group of four has beyond
// the row is -inf.

namespace sluice {
namespace {

using Sum = unsigned long long;  // as atomicAdd and shuffles know it

constexpr unsigned kAllLanes = 0xffffffffu;
constexpr int kMaxThreads = 1024;
constexpr int kMaxWarps = kMaxThreads / 32;
constexpr int kMaxBins = 2048;
constexpr int kMaxListed = 1024;

// The shared memory of a block.
struct Shared {
  unsigned bins[kMaxBins];  // of sums: the lower halves, then the upper ones
  Sum parts[kMaxWarps];
  Sum inside;  // the sum that is wanted of the bin
  int bin;     // the bin that was found, or -1
  int listed;
  int tokens[kMaxListed];
  __align__(16) float logits[kMaxListed];
};
static_assert(kMaxListed >= kMaxThreads);

// --- Numbers ----------------------------------------------------------------

// Maps floats to integers in their order; both zeros are one, NaN is above all.
__device__ __forceinline__ unsigned OrderOf(float x) {
  if (x != x) return 0xffffffffu;
  if (x == 0) x = 0;
  const unsigned bits = __float_as_uint(x);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float FloatAt(unsigned order) {
  return __uint_as_float(order & 0x80000000u ? order & 0x7fffffffu : ~order);
}

// Returns exp(x), x <= 0, and 0 below -86 and for NaN, by the operations of
// runtime/sample/vector_ops.cc (Cephes' expf).
__device__ __forceinline__ float Exp(float x) {
  const bool in_range = x > -86.0f;
  const float c = in_range ? x : -86.0f;
  const float magic = 12582912.0f;
  const float t = __fadd_rn(__fmul_rn(c, 1.44269504088896341f), magic);
  const float n = __fsub_rn(t, magic);
  const float r = __fadd_rn(__fsub_rn(c, __fmul_rn(n, 0.693359375f)),
                            __fmul_rn(n, 2.12194440e-4f));
  float p = __fadd_rn(__fmul_rn(1.9875691500e-4f, r), 1.3981999507e-3f);
  p = __fadd_rn(__fmul_rn(p, r), 8.3334519073e-3f);
  p = __fadd_rn(__fmul_rn(p, r), 4.1665795894e-2f);
  p = __fadd_rn(__fmul_rn(p, r), 1.6666665459e-1f);
  p = __fadd_rn(__fmul_rn(p, r), 5.0000001201e-1f);
  p = __fadd_rn(__fadd_rn(__fmul_rn(p, __fmul_rn(r, r)), r), 1.0f);
  const float scale = __uint_as_float((__float_as_uint(t) << 23) + 0x3f800000u);
  return in_range ? __fmul_rn(p, scale) : 0.0f;
}

__device__ __forceinline__ float WeightOf(float logit, float peak,
                                          float temperature) {
  return Exp(__fdiv_rn(__fsub_rn(logit, peak), temperature));
}

// Returns a weight in units of which a whole vocabulary's fit into a Sum.
__device__ __forceinline__ Sum Fixed(float weight, float unit) {
  return static_cast<Sum>(__fmul_rn(weight, unit));
}

// --- Rows -------------------------------------------------------------------

// Logits in groups of four that lie at multiples of 16 bytes: group g has the
// tokens [4 g - shift, + 4).
struct Row {
  const float* logits;
  int n;
  int shift;
  int groups;
};

__device__ __forceinline__ Row MakeRow(const float* logits, int n) {
  Row row;
  row.logits = logits;
  row.n = n;
  row.shift =
      static_cast<int>(reinterpret_cast<size_t>(logits) / sizeof(float) % 4);
  row.groups = (n + row.shift + 3) / 4;
  return row;
}

struct Four {
  float v[4];
};

__device__ __forceinline__ Four LoadGroup(const Row& row, int group) {
  const int token = 4 * group - row.shift;
  Four four;
  if (token >= 0 && token + 4 <= row.n) {
    const float4 v = *reinterpret_cast<const float4*>(row.logits + token);
    four.v[0] = v.x;
    four.v[1] = v.y;
    four.v[2] = v.z;
    four.v[3] = v.w;
    return four;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const bool inside = token + i >= 0 && token + i < row.n;
    four.v[i] = inside ? row.logits[token + i] : -INFINITY;
  }
  return four;
}

// Calls visit(token, logit) for each of groups first, first + step, ... < last,
// by token. Tokens beyond the row are visited, too, as -inf.
template <typename Visit>
__device__ __forceinline__ void ForGroups(const Row& row, int first, int last,
                                          int step, const Visit& visit) {
  // The next two groups are under way while one is visited.
  for (int group = first; group < last; group += 2 * step) {
    const Four a = LoadGroup(row, group);
    Four b = {{-INFINITY, -INFINITY, -INFINITY, -INFINITY}};
    if (group + step < last) b = LoadGroup(row, group + step);
    const int token = 4 * group - row.shift;
#pragma unroll
    for (int i = 0; i < 4; ++i) visit(token + i, a.v[i]);
#pragma unroll
    for (int i = 0; i < 4; ++i) visit(token + 4 * step + i, b.v[i]);
  }
}

// The block's threads share the row.
template <typename Visit>
__device__ __forceinline__ void ForRow(const Row& row, const Visit& visit) {
  ForGroups(row, static_cast<int>(threadIdx.x), row.groups,
            static_cast<int>(blockDim.x), visit);
}

// --- The block --------------------------------------------------------------

__device__ __forceinline__ int Lane() {
  return static_cast<int>(threadIdx.x % 32);
}
__device__ __forceinline__ int Warp() {
  return static_cast<int>(threadIdx.x / 32);
}
__device__ __forceinline__ int Warps() {
  return static_cast<int>(blockDim.x / 32);
}

__device__ __forceinline__ Sum WarpSum(Sum x) {
#pragma unroll
  for (int bit = 16; bit > 0; bit /= 2) x += __shfl_xor_sync(kAllLanes, x, bit);
  return x;
}

// Returns the sum over this lane and those before it.
__device__ __forceinline__ Sum SumThrough(Sum x) {
#pragma unroll
  for (int delta = 1; delta < 32; delta *= 2) {
    const Sum before = __shfl_up_sync(kAllLanes, x, delta);
    if (Lane() >= delta) x += before;
  }
  return x;
}

__device__ __forceinline__ Sum BlockMax(Sum x, Shared& shared) {
#pragma unroll
  for (int bit = 16; bit > 0; bit /= 2) {
    const Sum other = __shfl_xor_sync(kAllLanes, x, bit);
    x = other > x ? other : x;
  }
  __syncthreads();  // what was there has been read
  if (Lane() == 0) shared.parts[Warp()] = x;
  __syncthreads();
  for (int w = 0; w < Warps(); ++w) {
    x = shared.parts[w] > x ? shared.parts[w] : x;
  }
  return x;
}

// SumParts() returns the sum of of(token, logit) over groups [first, last), and
// leaves in shared.parts a sum of PartOf() groups for each warp.
__device__ __forceinline__ int PartOf(int groups) {
  return (groups + Warps() - 1) / Warps();
}
template <typename Of>
__device__ __forceinline__ Sum SumParts(const Row& row, int first, int last,
                                        const Of& of, Shared& shared) {
  const int part = PartOf(last - first);
  const int begin = min(last, first + Warp() * part);
  const int end = min(last, begin + part);
  Sum sum = 0;
  ForGroups(row, begin + Lane(), end, 32,
            [&](int token, float logit) { sum += of(token, logit); });
  sum = WarpSum(sum);
  __syncthreads();  // what was there has been read
  if (Lane() == 0) shared.parts[Warp()] = sum;
  __syncthreads();
  sum = 0;
  for (int w = 0; w < Warps(); ++w) sum += shared.parts[w];
  return sum;
}

// Returns the first token at which the sum of of(token, logit), by token,
// exceeds target_of(the sum of all), which must be less than that sum.
template <typename Of, typename TargetOf>
__device__ int Invert(const Row& row, const Of& of, const TargetOf& target_of,
                      Shared& shared) {
  int first = 0;
  int last = row.groups;
  Sum target = target_of(SumParts(row, first, last, of, shared));
  for (;;) {
    const int part = PartOf(last - first);
    int w = 0;
    while (w + 1 < Warps() && target >= shared.parts[w]) {
      target -= shared.parts[w++];
    }
    first = min(last, first + w * part);
    last = min(last, first + part);
    if (last - first <= 32) break;
    SumParts(row, first, last, of, shared);
  }
  // Each warp does the rest, which saves a barrier.
  const int group = first + Lane();
  Four four = {{-INFINITY, -INFINITY, -INFINITY, -INFINITY}};
  if (group < last) four = LoadGroup(row, group);
  int token = 4 * group - row.shift;
  Sum sum = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) sum += of(token + i, four.v[i]);
  const Sum through = SumThrough(sum);
  const unsigned beyond = __ballot_sync(kAllLanes, through > target);
  Sum before = through - sum;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    before += of(token, four.v[0]);
    if (before > target) break;
    ++token;
    four = {{four.v[1], four.v[2], four.v[3], -INFINITY}};
  }
  return __shfl_sync(kAllLanes, token,
                     (__ffs(static_cast<int>(beyond)) - 1) & 31);
}

// --- Selection --------------------------------------------------------------

// Finds, from the highest bin down, the first at which the sum of at(bin)
// reaches `wanted` > 0, as shared.bin, and what of that is its own, as
// shared.inside; bin is -1 if all of them do not reach it. The whole block
// calls it once the bins are there.
template <int kBins, typename At>
__device__ void FindBin(const At& at, Sum wanted, Shared& shared) {
  constexpr int kEach = kBins / 32;
  if (threadIdx.x == 0) shared.bin = -1;
  __syncthreads();
  if (Warp() == 0) {
    const int top = kBins - 1 - Lane() * kEach;
    Sum mine = 0;
    // Each lane begins elsewhere, in another bank.
    for (int i = 0; i < kEach; ++i) mine += at(top - (i + Lane()) % kEach);
    const Sum through = SumThrough(mine);
    if (through >= wanted && through - mine < wanted) {
      Sum rest = wanted - (through - mine);
      int bin = top;
      while (at(bin) < rest) rest -= at(bin--);
      shared.bin = bin;
      shared.inside = rest;
    }
  }
  __syncthreads();
}

__device__ __forceinline__ void ClearBins(Shared& shared) {
  __syncthreads();  // what was there has been read
  for (int i = static_cast<int>(threadIdx.x); i < kMaxBins;
       i += static_cast<int>(blockDim.x)) {
    shared.bins[i] = 0;
  }
  __syncthreads();
}

// Finds one digit of the order of the k-th largest logit, of whose higher bits
// `prefix` is known: those below kShift + kBits are to be found.
template <int kShift, int kBits>
__device__ bool CountDigit(const Row& row, unsigned* prefix, Sum* wanted,
                           Shared& shared) {
  constexpr int kKnown = kShift + kBits;
  ClearBins(shared);
  const unsigned known = *prefix;
  ForRow(row, [&](int, float logit) {
    if (!(logit > -INFINITY)) return;
    const unsigned order = OrderOf(logit);
    bool agrees = true;
    if constexpr (kKnown < 32) agrees = order >> kKnown == known >> kKnown;
    if (agrees)
      atomicAdd(&shared.bins[order >> kShift & ((1u << kBits) - 1)], 1u);
  });
  __syncthreads();
  FindBin<1 << kBits>([&](int bin) { return Sum{shared.bins[bin]}; }, *wanted,
                      shared);
  if (shared.bin < 0) return false;
  *prefix = known | static_cast<unsigned>(shared.bin) << kShift;
  *wanted = shared.inside;
  return true;
}

// Returns the min logit that top-k may keep: the k-th largest logit, or the
// lowest number if there are fewer.
__device__ float MinOfTopK(const Row& row, int k, Shared& shared) {
  unsigned prefix = 0;
  Sum wanted = static_cast<Sum>(k);
  if (!CountDigit<21, 11>(row, &prefix, &wanted, shared)) return -FLT_MAX;
  CountDigit<10, 11>(row, &prefix, &wanted, shared);
  CountDigit<0, 10>(row, &prefix, &wanted, shared);
  return FloatAt(prefix);
}

// Lists what may be among the k largest logits, and maybe some more, by token:
// in shared.tokens and shared.logits. Returns how many; -1 if there are too
// many. `largest` is the largest that the thread sees in ForRow.
__device__ int ListTopK(const Row& row, int k, float largest, Shared& shared) {
  const int thread = static_cast<int>(threadIdx.x);
  unsigned* const tokens = shared.bins;
  unsigned* const logits = shared.bins + kMaxListed;
  static_assert(2 * kMaxListed <= kMaxBins);
  // The list would often be too short for a larger k.
  if (k > static_cast<int>(blockDim.x) / 2) return -1;
  shared.logits[thread] = largest;
  if (thread == 0) shared.listed = 0;
  __syncthreads();
  // k threads have each seen a logit that is no less than this.
  const float min_logit = MinOfTopK(
      MakeRow(shared.logits, static_cast<int>(blockDim.x)), k, shared);
  ForRow(row, [&](int token, float logit) {
    if (!(logit >= min_logit)) return;
    const int at = atomicAdd(&shared.listed, 1);
    if (at >= kMaxListed) return;
    tokens[at] = static_cast<unsigned>(token);
    logits[at] = __float_as_uint(logit);
  });
  __syncthreads();
  const int count = shared.listed;
  if (count > kMaxListed) return -1;
  // The listed tokens came in any order.
  for (int i = thread; i < count; i += static_cast<int>(blockDim.x)) {
    int place = 0;
    for (int j = 0; j < count; ++j) place += tokens[j] < tokens[i] ? 1 : 0;
    shared.tokens[place] = static_cast<int>(tokens[i]);
    shared.logits[place] = __uint_as_float(logits[i]);
  }
  __syncthreads();
  return count;
}

// The part of a row that is left to draw from.
struct Kept {
  float peak;
  float temperature;
  float unit;       // as Fixed takes it
  float min_logit;  // by top-k
  float min_p;      // weight
  // Top-p keeps heavier weights, and those of the tokens up to `cutoff` that
  // are as heavy.
  unsigned lightest;  // its bits
  int cutoff;
};

__device__ __forceinline__ float KeptWeight(const Kept& kept, float logit) {
  return logit >= kept.min_logit ? WeightOf(logit, kept.peak, kept.temperature)
                                 : 0;
}

// Finds one digit of the lightest weight that top-p keeps. Of all weights that
// agree in the higher bits, the heaviest that add up to *wanted are kept. With
// `top_p` >= 0, *wanted is set first, from all weights.
template <int kShift>
__device__ void SumDigit(const Row& row, const Kept& kept, float top_p,
                         unsigned* prefix, Sum* wanted, Shared& shared) {
  constexpr int kBits = 10;
  constexpr int kBins = 1 << kBits;
  constexpr int kKnown = kShift + kBits;
  static_assert(2 * kBins <= kMaxBins);
  ClearBins(shared);
  const unsigned known = *prefix;
  ForRow(row, [&](int, float logit) {
    const float weight = KeptWeight(kept, logit);
    const Sum fixed = Fixed(weight, kept.unit);
    const unsigned bits = __float_as_uint(weight);
    if (fixed == 0 || bits >> kKnown != known >> kKnown) return;
    const unsigned bin = bits >> kShift & (kBins - 1);
    // Shared memory adds halves faster than wholes.
    const unsigned low = static_cast<unsigned>(fixed);
    const unsigned carry =
        atomicAdd(&shared.bins[bin], low) + low < low ? 1u : 0u;
    const unsigned high = static_cast<unsigned>(fixed >> 32) + carry;
    if (high != 0) atomicAdd(&shared.bins[kBins + bin], high);
  });
  __syncthreads();
  const auto at = [&](int bin) {
    return Sum{shared.bins[kBins + bin]} << 32 | shared.bins[bin];
  };
  if (top_p >= 0) {
    Sum total = 0;
    for (int bin = Lane(); bin < kBins; bin += 32) total += at(bin);
    total = WarpSum(total);
    const double share =
        ceil(static_cast<double>(top_p) * static_cast<double>(total));
    *wanted = share < 1 ? 1 : min(static_cast<Sum>(share), total);
  }
  FindBin<kBins>(at, *wanted, shared);
  *prefix = known | static_cast<unsigned>(shared.bin) << kShift;
  *wanted = shared.inside;
}

__device__ void KeepTopP(const Row& row, float top_p, Kept* kept,
                         Shared& shared) {
  // Weights are at most 1, or an ulp more: of the highest bits, two are 0.
  unsigned lightest = 0;
  Sum wanted = 0;
  SumDigit<20>(row, *kept, fmaxf(top_p, 0), &lightest, &wanted, shared);
  SumDigit<10>(row, *kept, -1, &lightest, &wanted, shared);
  SumDigit<0>(row, *kept, -1, &lightest, &wanted, shared);
  // So many of the weights that are as heavy are kept.
  const Sum each = Fixed(__uint_as_float(lightest), kept->unit);
  const Sum count = (wanted + each - 1) / each;
  const int last_bin = static_cast<int>(lightest & 1023);
  const Sum equal =
      (Sum{shared.bins[1024 + last_bin]} << 32 | shared.bins[last_bin]) / each;
  kept->lightest = lightest;
  if (count == equal) return;
  kept->cutoff = Invert(
      row,
      [&](int, float logit) {
        return Sum{__float_as_uint(KeptWeight(*kept, logit)) == lightest};
      },
      [&](Sum) { return count - 1; }, shared);
}

__device__ int DrawFrom(const Row& row, const SampleRequest& request,
                        float peak, float unit, Shared& shared) {
  Kept kept;
  kept.peak = peak;
  kept.temperature = request.temperature;
  kept.unit = unit;
  kept.min_logit = -FLT_MAX;
  kept.min_p = fminf(request.min_p, 1.0f);
  kept.lightest = 0;
  kept.cutoff = INT_MAX;
  if (request.top_k > 0 && request.top_k < row.n) {
    kept.min_logit = MinOfTopK(row, request.top_k, shared);
  }
  if (request.top_p < 1) KeepTopP(row, request.top_p, &kept, shared);
  return Invert(
      row,
      [&](int token, float logit) {
        const float weight = KeptWeight(kept, logit);
        const unsigned bits = __float_as_uint(weight);
        const bool keep = !(weight < kept.min_p) &&
                          (bits > kept.lightest ||
                           (bits == kept.lightest && token <= kept.cutoff));
        return keep ? Fixed(weight, kept.unit) : 0;
      },
      [&](Sum total) {
        const auto target =
            static_cast<Sum>(request.uniform * static_cast<double>(total));
        return min(target, total - 1);
      },
      shared);
}

// Returns the token to answer with; `largest` is ListTopK's.
__device__ int DrawToken(const Row& row, const SampleRequest& request,
                         float peak, float largest, float unit,
                         Shared& shared) {
  int listed = -1;
  if (request.top_k > 0 && request.top_k < row.n) {
    listed = ListTopK(row, request.top_k, largest, shared);
  }
  // Top-k keeps of the list what it keeps of the row.
  const Row from = listed < 0 ? row : MakeRow(shared.logits, listed);
  const int place = DrawFrom(from, request, peak, unit, shared);
  return listed < 0 ? place : shared.tokens[place];
}

__global__ void __launch_bounds__(kMaxThreads)
    SampleKernel(const float* logits, int n, const RowSample* samples,
                 float unit, TokenSample* out) {
  __shared__ Shared shared;
  const RowSample sample = samples[blockIdx.x];
  const SampleRequest& request = sample.request;
  const Row row = MakeRow(logits + static_cast<int64_t>(sample.row) * n, n);

  // Finds the largest, and of equal ones the first; NaN is larger than all.
  float largest = -INFINITY;
  int token = -1;
  bool nan = false;
  ForRow(row, [&](int i, float logit) {
    nan = nan || logit != logit;
    if (logit > largest) {
      largest = logit;
      token = i;
    }
  });
  Sum best = 0;
  if (token >= 0) {
    best = Sum{OrderOf(largest)} << 32 | ~static_cast<unsigned>(token);
  }
  if (nan) best = ~Sum{0};
  best = BlockMax(best, shared);
  TokenSample answer;
  answer.token = -1;
  answer.logprob = NAN;
  const float peak = FloatAt(static_cast<unsigned>(best >> 32));
  // The peak is neither NaN nor infinite.
  if (best != 0 && peak <= FLT_MAX) {
    if (request.target >= 0) {
      answer.token = request.target;
    } else if (request.temperature > 0) {
      answer.token = DrawToken(row, request, peak, largest, unit, shared);
    } else {
      answer.token = static_cast<int>(~static_cast<unsigned>(best));
    }
    answer.logprob = 0;
    if (request.logprob != 0) {
      const Sum sum = SumParts(
          row, 0, row.groups,
          [&](int, float logit) {
            return Fixed(WeightOf(logit, peak, 1), unit);
          },
          shared);
      const double log_sum_exp =
          peak + log(static_cast<double>(sum) / static_cast<double>(unit));
      answer.logprob =
          static_cast<float>(row.logits[answer.token] - log_sum_exp);
    }
  }
  if (threadIdx.x == 0) out[blockIdx.x] = answer;
}

}  // namespace

absl::Status SampleTokens(const float* logits, int32_t vocab,
                          const RowSample* samples, int32_t count,
                          TokenSample* out, cudaStream_t stream) {
  constexpr int32_t kMaxTokens = 1 << 30;
  if (vocab <= 0 || vocab > kMaxTokens) {
    return InvalidArgument("sampling one of ", vocab, " tokens");
  }
  // Each thread takes a group of four if there are so many: two warps at least
  // where one does not see all groups at once.
  const int32_t groups = (vocab + 3 + 3) / 4;
  const int32_t threads =
      groups >= kMaxThreads ? kMaxThreads : (groups + 31) / 32 * 32;
  // Some more than a weight of 1 for each token are less than 2^63.
  int bits = 62;
  for (int32_t rest = vocab; rest > 0; rest /= 2) --bits;
  return Launch(&SampleKernel, static_cast<unsigned>(count), threads, 0, stream,
                logits, vocab, samples, std::ldexp(1.0f, bits), out);
}

}  // namespace sluice
