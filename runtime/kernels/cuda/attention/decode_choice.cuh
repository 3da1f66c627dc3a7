#pragma once

#include "runtime/kernels/cuda/attention/attention_kernels.h"
#include "runtime/kernels/cuda/attention/decode_kernels.cuh"

namespace sluice {

// Returns the tensor-core kernel for the head size: each of WholeHeadDim has
// its own, and all others up to each of two limits share one.
template <KvFormat kFormat, MmaType kType>
DecodeKernel ChooseDecode(int head_dim, bool scores_only) {
  const auto choose = [&](DecodeKernel decode, DecodeKernel score) {
    return scores_only ? score : decode;
  };
  switch (WholeHeadDim(kFormat, head_dim)) {
    case 64:
      return choose(DecodeMma<kFormat, kType, 64, true>,
                    ScoreMma<kFormat, kType, 64, true>);
    case 80:
      if constexpr (IsNarrow(kFormat)) {
        return choose(DecodeMma<kFormat, kType, 80, true>,
                      ScoreMma<kFormat, kType, 80, true>);
      }
      break;
    case 96:
      if constexpr (IsNarrow(kFormat)) {
        return choose(DecodeMma<kFormat, kType, 96, true>,
                      ScoreMma<kFormat, kType, 96, true>);
      }
      break;
    case 128:
      return choose(DecodeMma<kFormat, kType, 128, true>,
                    ScoreMma<kFormat, kType, 128, true>);
  }
  if (head_dim <= kSmallHeadDim) {
    return choose(DecodeMma<kFormat, kType, kSmallHeadDim, false>,
                  ScoreMma<kFormat, kType, kSmallHeadDim, false>);
  }
  return choose(DecodeMma<kFormat, kType, kMaxHeadDim, false>,
                ScoreMma<kFormat, kType, kMaxHeadDim, false>);
}

}  // namespace sluice
