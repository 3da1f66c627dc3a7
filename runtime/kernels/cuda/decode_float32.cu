#include "runtime/kernels/cuda/attention_launch.h"
#include "runtime/kernels/cuda/decode_kernels.cuh"

namespace sluice {
namespace {

template <KvFormat kFormat, int kRows>
absl::Status LaunchRows(const DecodeArgs& args, bool scores_only,
                        const LaunchSize& size) {
  void (*kernel)(DecodeArgs) = ScoreFma<kFormat, kRows>;
  if (!scores_only) {
    kernel = args.common.block.head_dim <= kSmallHeadDim
                 ? DecodeFma<kFormat, kRows, kSmallHeadDim / 32>
                 : DecodeFma<kFormat, kRows, kMaxHeadDim / 32>;
  }
  return Launch(kernel, size.grid, dim3(size.threads), size.shared_bytes,
                size.stream, args);
}

template <KvFormat kFormat>
absl::Status LaunchAs(const DecodeArgs& args, bool scores_only,
                      const LaunchSize& size) {
  return args.chunk_heads == 1
             ? LaunchRows<kFormat, 1>(args, scores_only, size)
             : LaunchRows<kFormat, kFmaRows>(args, scores_only, size);
}

}  // namespace

absl::Status DecodeFloat32(KvFormat format, const DecodeArgs& args,
                           bool scores_only, const LaunchSize& size) {
  switch (format) {
    case KvFormat::kFloat32:
      return LaunchAs<KvFormat::kFloat32>(args, scores_only, size);
    case KvFormat::kBFloat16:
      return LaunchAs<KvFormat::kBFloat16>(args, scores_only, size);
    case KvFormat::kInt8:
      return LaunchAs<KvFormat::kInt8>(args, scores_only, size);
    case KvFormat::kInt4:
      return LaunchAs<KvFormat::kInt4>(args, scores_only, size);
  }
  return absl::InternalError("a KV format that no attention kernel knows");
}

}  // namespace sluice
