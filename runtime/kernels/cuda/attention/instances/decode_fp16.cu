#include "runtime/kernels/cuda/attention/attention_kernels.h"
#include "runtime/kernels/cuda/attention/decode_choice.cuh"

namespace sluice {

DecodeKernel DecodeFp16(int head_dim, bool scores_only) {
  return ChooseDecode<KvFormat::kFloat16, MmaType::kHalf>(head_dim,
                                                          scores_only);
}

}  // namespace sluice
