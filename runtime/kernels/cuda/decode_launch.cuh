#pragma once

#include "absl/status/status.h"
#include "runtime/kernels/cuda/attention_launch.h"
#include "runtime/kernels/cuda/decode_kernels.cuh"

namespace sluice {

// The tensor-core kernel for the head size: sizes that most models have, and
// one for all others up to each of two limits.
template <KvFormat kFormat, MmaType kType>
absl::Status LaunchDecodeMma(const DecodeArgs& args, bool scores_only,
                             const LaunchSize& size) {
  const auto launch = [&](void (*decode)(DecodeArgs),
                          void (*score)(DecodeArgs)) {
    return Launch(scores_only ? score : decode, size.grid, dim3(size.threads),
                  size.shared_bytes, size.stream, args);
  };
  switch (args.common.block.head_dim) {
    case 64:
      return launch(DecodeMma<kFormat, kType, 64, true>,
                    ScoreMma<kFormat, kType, 64, true>);
    case 128:
      return launch(DecodeMma<kFormat, kType, 128, true>,
                    ScoreMma<kFormat, kType, 128, true>);
    default:
      if (args.common.block.head_dim < 128) {
        return launch(DecodeMma<kFormat, kType, 128, false>,
                      ScoreMma<kFormat, kType, 128, false>);
      }
      return launch(DecodeMma<kFormat, kType, kMaxHeadDim, false>,
                    ScoreMma<kFormat, kType, kMaxHeadDim, false>);
  }
}

}  // namespace sluice
