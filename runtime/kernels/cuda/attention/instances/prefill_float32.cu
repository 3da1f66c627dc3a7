#include "runtime/kernels/cuda/attention/attention_kernels.h"
#include "runtime/kernels/cuda/attention/prefill_kernels.cuh"

namespace sluice {

PrefillKernel PrefillFloat32(KvFormat format, int head_dim) {
  // The other formats come here with odd head sizes or float32 models only: one
  // kernel for all sizes is enough.
  switch (format) {
    case KvFormat::kFloat32:
      return head_dim <= kSmallHeadDim
                 ? PrefillFma<KvFormat::kFloat32, kFmaRows, kSmallHeadDim / 32>
                 : PrefillFma<KvFormat::kFloat32, kFmaRows, kMaxHeadDim / 32>;
    case KvFormat::kBFloat16:
      return PrefillFma<KvFormat::kBFloat16, kFmaRows, kMaxHeadDim / 32>;
    case KvFormat::kFloat16:
      return PrefillFma<KvFormat::kFloat16, kFmaRows, kMaxHeadDim / 32>;
    case KvFormat::kInt8:
      return PrefillFma<KvFormat::kInt8, kFmaRows, kMaxHeadDim / 32>;
    case KvFormat::kInt4:
      return PrefillFma<KvFormat::kInt4, kFmaRows, kMaxHeadDim / 32>;
  }
  return nullptr;
}

}  // namespace sluice
