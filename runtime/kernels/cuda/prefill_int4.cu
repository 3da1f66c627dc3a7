#include "runtime/kernels/cuda/attention_launch.h"
#include "runtime/kernels/cuda/prefill_launch.cuh"

namespace sluice {

absl::Status PrefillInt4(const PrefillArgs& args, const LaunchSize& size) {
  return LaunchPrefillMma<KvFormat::kInt4, MmaType::kHalf>(args, size);
}

}  // namespace sluice
