#include "runtime/kernels/cuda/attention/attention_kernels.h"
#include "runtime/kernels/cuda/attention/decode_choice.cuh"

namespace sluice {

DecodeKernel DecodeInt4(int head_dim, bool scores_only) {
  return ChooseDecode<KvFormat::kInt4, MmaType::kHalf>(head_dim, scores_only);
}

}  // namespace sluice
