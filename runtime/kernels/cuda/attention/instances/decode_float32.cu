#include "runtime/kernels/cuda/attention/attention_kernels.h"
#include "runtime/kernels/cuda/attention/decode_kernels.cuh"

namespace sluice {
namespace {

// The other formats come here with odd head sizes or float32 models only: one
// kernel for all sizes is enough.
template <KvFormat kFormat, int kRows>
DecodeKernel ChooseColumns(int head_dim, bool scores_only) {
  if (scores_only) return ScoreFma<kFormat, kRows>;
  if constexpr (kFormat == KvFormat::kFloat32) {
    if (head_dim <= kSmallHeadDim) {
      return DecodeFma<kFormat, kRows, kSmallHeadDim / 32>;
    }
  }
  return DecodeFma<kFormat, kRows, kMaxHeadDim / 32>;
}

template <KvFormat kFormat>
DecodeKernel Choose(int head_dim, int heads, bool scores_only) {
  return heads == 1 ? ChooseColumns<kFormat, 1>(head_dim, scores_only)
                    : ChooseColumns<kFormat, kFmaRows>(head_dim, scores_only);
}

}  // namespace

DecodeKernel DecodeFloat32(KvFormat format, int head_dim, int heads,
                           bool scores_only) {
  switch (format) {
    case KvFormat::kFloat32:
      return Choose<KvFormat::kFloat32>(head_dim, heads, scores_only);
    case KvFormat::kBFloat16:
      return Choose<KvFormat::kBFloat16>(head_dim, heads, scores_only);
    case KvFormat::kFloat16:
      return Choose<KvFormat::kFloat16>(head_dim, heads, scores_only);
    case KvFormat::kInt8:
      return Choose<KvFormat::kInt8>(head_dim, heads, scores_only);
    case KvFormat::kInt4:
      return Choose<KvFormat::kInt4>(head_dim, heads, scores_only);
  }
  return nullptr;
}

}  // namespace sluice
