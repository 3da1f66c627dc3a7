#pragma once

#include <cuda_runtime.h>

// Declares `name` in a kernel: a Type* to the block's dynamic shared memory, of
// which there is what Launch was given, at a multiple of 128 bytes. Two such
// names in one kernel are the same memory. It is CUDA's `extern __shared__` in
// a spelling that C++ has, too (see launch.h).
#ifdef __CUDACC__
#define SLUICE_DYNAMIC_SHARED(Type, name)                                  \
  extern __shared__ __align__(128) unsigned char sluice_dynamic_shared_[]; \
  Type* const name = reinterpret_cast<Type*>(sluice_dynamic_shared_)
#else
#define SLUICE_DYNAMIC_SHARED(Type, name) \
  Type* const name =                      \
      reinterpret_cast<Type*>(::sluice::emulation::DynamicShared())
#endif
