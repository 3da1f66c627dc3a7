#include "runtime/sample/vector_ops.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

// This file is compiled with -ffp-contract=off: see the header.

namespace sluice::vector_ops {
namespace {

constexpr int kLanes = 16;  // partial sums
constexpr float kInf = std::numeric_limits<float>::infinity();

// GCC's and Clang's vector extension. Kernels take the width as a parameter and
// are inlined into functions of the right target.
template <int kWidth>
struct Vec {
  typedef float F __attribute__((vector_size(kWidth * 4)));
  typedef int32_t I __attribute__((vector_size(kWidth * 4)));
};

#define SLUICE_INLINE inline __attribute__((always_inline))

// Computes Cephes' expf for x in [-86, 0]; 0 below (and for NaN).
template <int kWidth>
SLUICE_INLINE typename Vec<kWidth>::F Exp(typename Vec<kWidth>::F x) {
  using F = typename Vec<kWidth>::F;
  using I = typename Vec<kWidth>::I;
  const F min_x = F{} - 86.0f;
  const auto in_range = x > min_x;
  const F c = in_range ? x : min_x;
  // Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits.
  const F magic = F{} + 12582912.0f;
  const F t = c * 1.44269504088896341f + magic;
  const F n = t - magic;
  const F r = c - n * 0.693359375f + n * 2.12194440e-4f;
  F p = F{} + 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  I bits;
  std::memcpy(&bits, &t, sizeof(bits));
  // Unsigned, the integer's low bits can be shifted into the exponent.
  typedef uint32_t U __attribute__((vector_size(kWidth * 4)));
  U scale_bits;
  std::memcpy(&scale_bits, &bits, sizeof(bits));
  scale_bits = (scale_bits << 23) + 0x3F800000u;
  F scale;
  std::memcpy(&scale, &scale_bits, sizeof(scale));
  return in_range ? p * scale : F{};
}

template <int kWidth>
SLUICE_INLINE bool BlockMaximaImpl(std::span<const float> x, float* maxima) {
  using F = typename Vec<kWidth>::F;
  using I = typename Vec<kWidth>::I;
  constexpr int kParts = kLanes / kWidth;
  I nan = {};
  size_t i = 0;
  for (; i + kMaxBlock <= x.size(); i += kMaxBlock) {
    F max[kParts];
    for (int k = 0; k < kParts; ++k) max[k] = F{} - kInf;
    for (size_t j = 0; j < kMaxBlock; j += kLanes) {
      for (int k = 0; k < kParts; ++k) {
        F v;
        std::memcpy(&v, &x[i + j + k * kWidth], sizeof(v));
        max[k] = v > max[k] ? v : max[k];
        nan |= v != v;  // NOLINT(misc-redundant-expression)
      }
    }
    for (int k = 1; k < kParts; ++k) max[0] = max[k] > max[0] ? max[k] : max[0];
    float best = -kInf;
    for (int l = 0; l < kWidth; ++l) best = std::max(best, max[0][l]);
    *maxima++ = best;
  }
  bool any_nan = false;
  for (int l = 0; l < kWidth; ++l) any_nan |= nan[l] != 0;
  if (i < x.size()) {
    float best = -kInf;
    for (; i < x.size(); ++i) {
      any_nan |= x[i] != x[i];
      best = x[i] > best ? x[i] : best;
    }
    *maxima = best;
  }
  return any_nan;
}

template <int kWidth>
SLUICE_INLINE float ExpSumImpl(std::span<const float> x, float max,
                               float temperature, float* weights) {
  using F = typename Vec<kWidth>::F;
  constexpr int kParts = kLanes / kWidth;
  F sum[kParts] = {};
  size_t i = 0;
  for (; i + kLanes <= x.size(); i += kLanes) {
    for (int k = 0; k < kParts; ++k) {
      F v;
      std::memcpy(&v, &x[i + k * kWidth], sizeof(v));
      v = Exp<kWidth>((v - max) / temperature);
      std::memcpy(&weights[i + k * kWidth], &v, sizeof(v));
      sum[k] += v;
    }
  }
  if (i < x.size()) {
    const size_t rest = x.size() - i;
    float tail[kLanes];
    std::fill(tail, tail + kLanes, -kInf);
    std::memcpy(tail, &x[i], rest * sizeof(float));
    for (int k = 0; k < kParts; ++k) {
      F v;
      std::memcpy(&v, &tail[k * kWidth], sizeof(v));
      v = Exp<kWidth>((v - max) / temperature);
      std::memcpy(&tail[k * kWidth], &v, sizeof(v));
      sum[k] += v;
    }
    std::memcpy(&weights[i], tail, rest * sizeof(float));
  }
  float lanes[kLanes];
  std::memcpy(lanes, sum, sizeof(lanes));
  for (int half = kLanes / 2; half > 0; half /= 2)
    for (int l = 0; l < half; ++l) lanes[l] += lanes[l + half];
  return lanes[0];
}

bool BlockMaximaPortable(std::span<const float> x, float* maxima) {
  return BlockMaximaImpl<4>(x, maxima);
}
float ExpSumPortable(std::span<const float> x, float max, float temperature,
                     float* weights) {
  return ExpSumImpl<4>(x, max, temperature, weights);
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) bool BlockMaximaAvx2(std::span<const float> x,
                                                     float* maxima) {
  return BlockMaximaImpl<8>(x, maxima);
}
__attribute__((target("avx2"))) float ExpSumAvx2(std::span<const float> x,
                                                 float max, float temperature,
                                                 float* weights) {
  return ExpSumImpl<8>(x, max, temperature, weights);
}
__attribute__((target("avx512f"))) float ExpSumAvx512(std::span<const float> x,
                                                      float max,
                                                      float temperature,
                                                      float* weights) {
  return ExpSumImpl<16>(x, max, temperature, weights);
}
#endif

std::vector<Variant> FindVariants() {
  std::vector<Variant> variants = {
      {"portable", BlockMaximaPortable, ExpSumPortable}};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2"))
    variants.push_back({"avx2", BlockMaximaAvx2, ExpSumAvx2});
  if (__builtin_cpu_supports("avx512f"))
    // The maxima are bound by their reductions, for which 16 lanes are slower.
    variants.push_back({"avx512f", BlockMaximaAvx2, ExpSumAvx512});
#endif
  return variants;
}

}  // namespace

std::span<const Variant> Variants() {
  static const std::vector<Variant>& variants =
      *new std::vector<Variant>(FindVariants());
  return variants;
}

bool BlockMaxima(std::span<const float> x, float* maxima) {
  static const auto f = Variants().back().block_maxima;
  return f(x, maxima);
}

float ExpSum(std::span<const float> x, float max, float temperature,
             float* weights) {
  static const auto f = Variants().back().exp_sum;
  return f(x, max, temperature, weights);
}

}  // namespace sluice::vector_ops
