#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "runtime/kernels/cuda/device/mma_type.h"

// The few instructions that CUDA C++ has no name for (PTX ISA 8.0, sections
// 9.7.9.25 "cp.async", 9.7.14.5 "mma" and "ldmatrix"). Products of matrices are
// taken by mma rather than nvcuda::wmma, as only mma says which element lies in
// which register: a tile of scores becomes weights, and the weights become the
// left side of the next product, without leaving the registers.
//
// Lane 4 g + t of a warp has, of a 16x16 matrix on the left, rows g and g + 8,
// columns 2 t, 2 t + 1, 2 t + 8 and 2 t + 9; of a 16x8 matrix on the right, the
// same rows and column g; of a 16x8 sum, rows g and g + 8, columns 2 t and 2 t
// + 1. A register has two 16-bit elements, the first one low.

namespace sluice {

inline constexpr unsigned kAllLanes = 0xffffffffu;

#ifndef __CUDACC__
// The emulation of the device; all lanes of a warp call these functions.
namespace emulation {
void Mma(bool bf16, float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
         uint32_t b1);
void LoadMatrices(bool transposed, const void* row, uint32_t (&out)[4]);
}  // namespace emulation
#endif

// Returns 2^x, to 2 units in the last place; results below 2^-126 are 0.
__device__ __forceinline__ float Exp2(float x) {
#ifdef __CUDACC__
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return exp2f(x);
#endif
}

// An address in shared memory, which bits can be set in.
#ifdef __CUDACC__
using SharedAddress = uint32_t;
__device__ __forceinline__ SharedAddress SharedAddressOf(const void* shared) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
}
#else
using SharedAddress = uintptr_t;
inline SharedAddress SharedAddressOf(const void* shared) {
  return reinterpret_cast<uintptr_t>(shared);
}
#endif

// Copies 16 bytes to shared memory, both at multiples of 16. They are there
// after WaitCopies of their group (on devices before 8.0: at once), for other
// threads after a barrier.
__device__ __forceinline__ void CopyAsync16(void* to, const void* from) {
#if defined(__CUDACC__) && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile(
      "cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(SharedAddressOf(to)),
      "l"(from)
      : "memory");
#else
  *static_cast<uint4*>(to) = *static_cast<const uint4*>(from);
#endif
}

// Ends a group: this thread's copies since the last one.
__device__ __forceinline__ void CommitCopies() {
#if defined(__CUDACC__) && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits for this thread's copies, but for those of the last `pending` groups
// (0, 1 or 2).
__device__ __forceinline__ void WaitCopies(int pending) {
#if defined(__CUDACC__) && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  if (pending == 2) {
    asm volatile("cp.async.wait_group 2;" ::: "memory");
  } else if (pending == 1) {
    asm volatile("cp.async.wait_group 1;" ::: "memory");
  } else {
    asm volatile("cp.async.wait_group 0;" ::: "memory");
  }
#endif
}

// Loads four 8x8 matrices of 16-bit elements from shared memory: lane l says
// where row l % 8 of matrix l / 8 begins, at a multiple of 16 bytes. Register i
// gets matrix i as the left side of a GEMM takes it: row g, columns 2 t and 2 t
// + 1; or, transposed, as the right side does: rows 2 t and 2 t + 1, column g.
template <bool kTransposed>
__device__ __forceinline__ void LoadMatrices(SharedAddress row,
                                             uint32_t (&out)[4]) {
#ifdef __CUDACC__
  if constexpr (kTransposed) {
    asm volatile(
        "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
        : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
        : "r"(row)
        : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(row)
                 : "memory");
  }
#else
  emulation::LoadMatrices(kTransposed, reinterpret_cast<const void*>(row), out);
#endif
}

// d += a b. Devices before 8.0 have no products of bfloat16.
template <MmaType kType>
__device__ __forceinline__ void Mma(float (&d)[4], const uint32_t (&a)[4],
                                    uint32_t b0, uint32_t b1) {
#ifndef __CUDACC__
  emulation::Mma(kType == MmaType::kBFloat16, d, a, b0, b1);
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  if constexpr (kType == MmaType::kBFloat16) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, "
        "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, "
        "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
#elif defined(__CUDA_ARCH__)
  static_assert(kType == MmaType::kHalf, "bfloat16 needs a newer device");
  asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, "
      "{%4,%5}, {%6}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(b0));
  asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, "
      "{%4,%5}, {%6}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[2]), "r"(a[3]), "r"(b1));
#endif
}

// Rounds two elements to 16 bits and returns them in a register.
template <MmaType kType>
__device__ __forceinline__ uint32_t Pack(float x, float y) {
  if constexpr (kType == MmaType::kBFloat16) {
    const __nv_bfloat162 both = __floats2bfloat162_rn(x, y);
    return static_cast<uint32_t>(__bfloat16_as_ushort(both.x)) |
           static_cast<uint32_t>(__bfloat16_as_ushort(both.y)) << 16;
  } else {
    const __half2 both = __floats2half2_rn(x, y);
    return static_cast<uint32_t>(__half_as_ushort(__low2half(both))) |
           static_cast<uint32_t>(__half_as_ushort(__high2half(both))) << 16;
  }
}

template <MmaType kType>
__device__ __forceinline__ float2 Unpack(uint32_t both) {
  if constexpr (kType == MmaType::kBFloat16) {
    return make_float2(__uint_as_float(both << 16),
                       __uint_as_float(both & 0xffff0000u));
  } else {
    return make_float2(
        __half2float(__ushort_as_half(static_cast<unsigned short>(both))),
        __half2float(
            __ushort_as_half(static_cast<unsigned short>(both >> 16))));
  }
}

// Returns codes * scales + minima, rounded once, of two integers below 1024
// each, given as halves that are 1024 more.
__device__ __forceinline__ uint32_t Dequantize(uint32_t codes, uint32_t scales,
                                               uint32_t minima) {
#ifdef __CUDACC__
  uint32_t plain, out;
  asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(plain) : "r"(codes), "r"(0x64006400u));
  asm("fma.rn.f16x2 %0, %1, %2, %3;"
      : "=r"(out)
      : "r"(plain), "r"(scales), "r"(minima));
  return out;
#else
  const float2 c = Unpack<MmaType::kHalf>(codes);
  const float2 s = Unpack<MmaType::kHalf>(scales);
  const float2 m = Unpack<MmaType::kHalf>(minima);
  return Pack<MmaType::kHalf>((c.x - 1024) * s.x + m.x,
                              (c.y - 1024) * s.y + m.y);
#endif
}

}  // namespace sluice
