#pragma once

#include <cuda_runtime.h>

// In a kernel: `name` is a Type* to the block's dynamic shared memory, of which
// there is what Launch was given; at a multiple of 128 bytes. Two such names in
// one kernel are the same memory. What `extern __shared__` is in CUDA, in a
// spelling that C++ has, too (see launch.h).
#ifdef __CUDACC__
#define SLUICE_DYNAMIC_SHARED(Type, name)                                  \
  extern __shared__ __align__(128) unsigned char sluice_dynamic_shared_[]; \
  Type* const name = reinterpret_cast<Type*>(sluice_dynamic_shared_)
#else
#define SLUICE_DYNAMIC_SHARED(Type, name) \
  Type* const name =                      \
      reinterpret_cast<Type*>(::sluice::emulation::DynamicShared())
#endif
