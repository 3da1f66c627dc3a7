#pragma once

#include "runtime/kernels/cuda/attention/attention_kernels.h"
#include "runtime/kernels/cuda/attention/prefill_kernels.cuh"

namespace sluice {

// Returns the tensor-core kernel for the head size: each of WholeHeadDim has
// its own, and all others up to each of two limits share one.
template <KvFormat kFormat, MmaType kType>
PrefillKernel ChoosePrefill(int head_dim) {
  switch (WholeHeadDim(kFormat, head_dim)) {
    case 64:
      return PrefillMma<kFormat, kType, 64, true, 2>;
    case 80:
      if constexpr (IsNarrow(kFormat)) {
        return PrefillMma<kFormat, kType, 80, true, 2>;
      }
      break;
    case 96:
      if constexpr (IsNarrow(kFormat)) {
        return PrefillMma<kFormat, kType, 96, true, 2>;
      }
      break;
    case 128:
      return PrefillMma<kFormat, kType, 128, true, 2>;
  }
  if (head_dim <= kSmallHeadDim) {
    return PrefillMma<kFormat, kType, kSmallHeadDim, false, 2>;
  }
  return PrefillMma<kFormat, kType, kMaxHeadDim, false, 1>;
}

}  // namespace sluice
