#include "runtime/kernels/cuda/attention_launch.h"
#include "runtime/kernels/cuda/prefill_launch.cuh"

namespace sluice {

absl::Status PrefillBf16(const PrefillArgs& args, MmaType type,
                         const LaunchSize& size) {
  constexpr auto kFormat = KvFormat::kBFloat16;
  return type == MmaType::kHalf
             ? LaunchPrefillMma<kFormat, MmaType::kHalf>(args, size)
             : LaunchPrefillMma<kFormat, MmaType::kBFloat16>(args, size);
}

}  // namespace sluice
