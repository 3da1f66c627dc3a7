#include "runtime/kernels/cuda/attention/attention_kernels.h"
#include "runtime/kernels/cuda/attention/decode_choice.cuh"

namespace sluice {

DecodeKernel DecodeBf16(MmaType type, int head_dim, bool scores_only) {
  constexpr auto kFormat = KvFormat::kBFloat16;
  return type == MmaType::kHalf
             ? ChooseDecode<kFormat, MmaType::kHalf>(head_dim, scores_only)
             : ChooseDecode<kFormat, MmaType::kBFloat16>(head_dim, scores_only);
}

}  // namespace sluice
