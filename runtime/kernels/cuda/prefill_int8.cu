#include "runtime/kernels/cuda/attention_launch.h"
#include "runtime/kernels/cuda/prefill_launch.cuh"

namespace sluice {

absl::Status PrefillInt8(const PrefillArgs& args, const LaunchSize& size) {
  return LaunchPrefillMma<KvFormat::kInt8, MmaType::kHalf>(args, size);
}

}  // namespace sluice
