#pragma once

#include "absl/status/status.h"
#include "runtime/kernels/cuda/attention_launch.h"
#include "runtime/kernels/cuda/prefill_kernels.cuh"

namespace sluice {

// The tensor-core kernel for the head size: sizes that most models have, and
// one for all others up to each of two limits.
template <KvFormat kFormat, MmaType kType>
absl::Status LaunchPrefillMma(const PrefillArgs& args, const LaunchSize& size) {
  const auto launch = [&](void (*kernel)(PrefillArgs)) {
    return Launch(kernel, size.grid, dim3(size.threads), size.shared_bytes,
                  size.stream, args);
  };
  switch (args.common.block.head_dim) {
    case 64:
      return launch(PrefillMma<kFormat, kType, 64, true, 2>);
    case 128:
      return launch(PrefillMma<kFormat, kType, 128, true, 2>);
    default:
      if (args.common.block.head_dim < 128) {
        return launch(PrefillMma<kFormat, kType, 128, false, 2>);
      }
      return launch(PrefillMma<kFormat, kType, kMaxHeadDim, false, 1>);
  }
}

}  // namespace sluice
