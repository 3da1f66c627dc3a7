#include "runtime/kernels/cuda/attention/attention_kernels.h"
#include "runtime/kernels/cuda/attention/prefill_choice.cuh"

namespace sluice {

PrefillKernel PrefillInt4(int head_dim) {
  return ChoosePrefill<KvFormat::kInt4, MmaType::kHalf>(head_dim);
}

}  // namespace sluice
