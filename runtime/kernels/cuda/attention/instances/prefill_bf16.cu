#include "runtime/kernels/cuda/attention/attention_kernels.h"
#include "runtime/kernels/cuda/attention/prefill_choice.cuh"

namespace sluice {

PrefillKernel PrefillBf16(MmaType type, int head_dim) {
  constexpr auto kFormat = KvFormat::kBFloat16;
  return type == MmaType::kHalf
             ? ChoosePrefill<kFormat, MmaType::kHalf>(head_dim)
             : ChoosePrefill<kFormat, MmaType::kBFloat16>(head_dim);
}

}  // namespace sluice
