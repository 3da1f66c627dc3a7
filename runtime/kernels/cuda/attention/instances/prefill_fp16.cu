#include "runtime/kernels/cuda/attention/attention_kernels.h"
#include "runtime/kernels/cuda/attention/prefill_choice.cuh"

namespace sluice {

PrefillKernel PrefillFp16(int head_dim) {
  return ChoosePrefill<KvFormat::kFloat16, MmaType::kHalf>(head_dim);
}

}  // namespace sluice
