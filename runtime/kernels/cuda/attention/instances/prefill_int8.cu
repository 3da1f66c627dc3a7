#include "runtime/kernels/cuda/attention/attention_kernels.h"
#include "runtime/kernels/cuda/attention/prefill_choice.cuh"

namespace sluice {

PrefillKernel PrefillInt8(int head_dim) {
  return ChoosePrefill<KvFormat::kInt8, MmaType::kHalf>(head_dim);
}

}  // namespace sluice
