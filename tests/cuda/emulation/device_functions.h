#pragma once

#include <math.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>

#include "tests/cuda/emulation/block.h"

// Device code may call these, by CUDA's names and with CUDA's meaning.

#define __global__
#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
// One block runs at a time.
#define __shared__ static

using std::max;
using std::min;

// --- Barriers -----------------------------------------------------------

inline void __syncthreads() {
  sluice::emulation::Barrier("__syncthreads", false);
}
inline int __syncthreads_count(int predicate) {
  return sluice::emulation::Barrier("__syncthreads_count", predicate != 0);
}
inline int __syncthreads_or(int predicate) {
  return sluice::emulation::Barrier("__syncthreads_or", predicate != 0) > 0;
}
inline int __syncthreads_and(int predicate) {
  return sluice::emulation::Barrier("__syncthreads_and", predicate == 0) == 0;
}
inline void __threadfence() {}
inline void __threadfence_block() {}

// --- Warps --------------------------------------------------------------

inline void __syncwarp(unsigned mask = 0xffffffffu) {
  sluice::emulation::WarpMeet("__syncwarp", mask, nullptr,
                              [](const sluice::emulation::Requests&) {});
}

namespace sluice::emulation {

template <typename T>
struct Shuffle {
  T value;
  int from;
  T result;
};

template <typename T>
T ShuffleFrom(const char* name, unsigned mask, T value, int from) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= 8);
  Shuffle<T> mine{value, from, {}};
  WarpMeet(name, mask, &mine, [](const Requests& requests) {
    for (int lane = 0; lane < 32; ++lane) {
      auto* to = static_cast<Shuffle<T>*>(requests[lane]);
      if (to == nullptr) continue;
      const auto* from = static_cast<Shuffle<T>*>(requests[to->from]);
      if (from == nullptr) {
        Fault("lane " + std::to_string(lane) + " takes a value of lane " +
              std::to_string(to->from) + ", which is not in the mask");
      }
      to->result = from->value;
    }
  });
  return mine.result;
}

struct Vote {
  bool value;
  unsigned result;
};

inline unsigned Ballot(const char* name, unsigned mask, bool value) {
  Vote mine{value, 0};
  WarpMeet(name, mask, &mine, [](const Requests& requests) {
    unsigned votes = 0;
    for (int lane = 0; lane < 32; ++lane) {
      const auto* vote = static_cast<const Vote*>(requests[lane]);
      if (vote != nullptr && vote->value) votes |= 1u << lane;
    }
    for (void* request : requests) {
      if (request != nullptr) static_cast<Vote*>(request)->result = votes;
    }
  });
  return mine.result;
}

// Returns the lane of the running thread.
inline int Lane() {
  return static_cast<int>(
      (threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) %
      32);
}

}  // namespace sluice::emulation

template <typename T>
T __shfl_sync(unsigned mask, T value, int from, int width = 32) {
  const int lane = sluice::emulation::Lane();
  return sluice::emulation::ShuffleFrom(
      "__shfl_sync", mask, value, lane / width * width + (from & (width - 1)));
}
template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  const int lane = sluice::emulation::Lane();
  const bool inside = static_cast<unsigned>(lane % width) >= delta;
  return sluice::emulation::ShuffleFrom(
      "__shfl_up_sync", mask, value,
      inside ? lane - static_cast<int>(delta) : lane);
}
template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  const int lane = sluice::emulation::Lane();
  const bool inside = lane % width + delta < static_cast<unsigned>(width);
  return sluice::emulation::ShuffleFrom(
      "__shfl_down_sync", mask, value,
      inside ? lane + static_cast<int>(delta) : lane);
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32) {
  const int lane = sluice::emulation::Lane();
  const int from = lane ^ bits;
  // Lanes of later segments are out of reach.
  return sluice::emulation::ShuffleFrom(
      "__shfl_xor_sync", mask, value,
      from < (lane / width + 1) * width ? from : lane);
}
inline unsigned __ballot_sync(unsigned mask, int predicate) {
  return sluice::emulation::Ballot("__ballot_sync", mask, predicate != 0);
}
inline int __any_sync(unsigned mask, int predicate) {
  return sluice::emulation::Ballot("__any_sync", mask, predicate != 0) != 0;
}
inline int __all_sync(unsigned mask, int predicate) {
  return sluice::emulation::Ballot("__all_sync", mask, predicate == 0) == 0;
}

// --- Atomics: threads take turns only where they wait ----------------------

template <typename T>
T atomicAdd(T* address, std::type_identity_t<T> value) {
  const T old = *address;
  *address = old + value;
  return old;
}
template <typename T>
T atomicMax(T* address, std::type_identity_t<T> value) {
  const T old = *address;
  *address = std::max(old, value);
  return old;
}
template <typename T>
T atomicMin(T* address, std::type_identity_t<T> value) {
  const T old = *address;
  *address = std::min(old, value);
  return old;
}
template <typename T>
T atomicExch(T* address, std::type_identity_t<T> value) {
  const T old = *address;
  *address = value;
  return old;
}
template <typename T>
T atomicCAS(T* address, std::type_identity_t<T> compare,
            std::type_identity_t<T> value) {
  const T old = *address;
  if (old == compare) *address = value;
  return old;
}
inline unsigned atomicOr(unsigned* address, unsigned value) {
  const unsigned old = *address;
  *address = old | value;
  return old;
}

// --- Arithmetic ------------------------------------------------------------

// Macros, as glibc has functions of these names.
#define __expf expf
#define __logf logf
#define __sinf sinf
#define __cosf cosf
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline float __fdividef(float x, float y) { return x / y; }
// CUDA does not fuse these with a neighbour; x86-64 does not fuse by itself.
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fsub_rn(float x, float y) { return x - y; }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fdiv_rn(float x, float y) { return x / y; }
inline float __fsqrt_rn(float x) { return std::sqrt(x); }
inline float __fmaf_rn(float x, float y, float z) { return std::fma(x, y, z); }
// Round to nearest even; NaN gives 0.
inline int __float2int_rn(float x) {
  if (std::isnan(x)) return 0;
  if (x >= 0x1p31f) return INT32_MAX;
  if (x <= -0x1p31f) return INT32_MIN;
  return static_cast<int>(std::nearbyint(x));
}
inline float __int2float_rn(int x) { return static_cast<float>(x); }
inline float __uint2float_rn(unsigned x) { return static_cast<float>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline float __int_as_float(int x) { return std::bit_cast<float>(x); }
inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline int __popc(unsigned x) { return std::popcount(x); }
inline int __clz(int x) { return std::countl_zero(static_cast<unsigned>(x)); }
// 1 for the lowest bit; 0 if none is set.
inline int __ffs(int x) { return __builtin_ffs(x); }
// c + the sum of products of the four signed bytes of a and b.
inline int __dp4a(int a, int b, int c) {
  for (int i = 0; i < 4; ++i) {
    c += static_cast<int8_t>(a >> 8 * i) * static_cast<int8_t>(b >> 8 * i);
  }
  return c;
}
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
  const uint64_t both = static_cast<uint64_t>(y) << 32 | x;
  unsigned out = 0;
  for (int i = 0; i < 4; ++i) {
    const unsigned nibble = selector >> 4 * i & 15;
    unsigned byte = both >> 8 * (nibble & 7) & 255;
    if (nibble & 8) byte = byte & 0x80 ? 0xff : 0;
    out |= byte << 8 * i;
  }
  return out;
}

// Loads and stores with hints for the caches.
template <typename T>
T __ldg(const T* address) {
  return *address;
}
template <typename T>
T __ldcs(const T* address) {
  return *address;
}
template <typename T>
T __ldcg(const T* address) {
  return *address;
}
template <typename T>
void __stcs(T* address, T value) {
  *address = value;
}
